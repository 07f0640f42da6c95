from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Facts, read_facts
from tests.fixtures.machines.build import build_machine

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def facts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Facts]:
    """Read a fixture machine by name, once."""
    root = tmp_path_factory.mktemp("machines")
    return functools.cache(lambda name: read_facts(build_machine(name, root)))
