from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Facts, read_facts
from tests.fixtures.machines.build import build_machine
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from dsv41_serving.plan import Plan


@pytest.fixture(scope="session")
def two_sockets(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Return the machine that is as a deployment wants it."""
    return read_facts(build_machine("two-socket-8gpu", tmp_path_factory.mktemp("machines")))


@pytest.fixture(scope="session")
def plan(two_sockets: Facts) -> Plan:
    """Return the plan of an H200 node: prefill, decode, router."""
    return plan_for(two_sockets, "h200x8")
