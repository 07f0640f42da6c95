from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.machines.build import build_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    """Build a machine by name and return its root."""
    return lambda name: build_machine(name, tmp_path)


@pytest.fixture
def two_sockets(machine: Callable[[str], Path]) -> Path:
    """Return the root of the machine that is as a deployment wants it."""
    return machine("two-socket-8gpu")
