"""One embedded stack, watched as the plan says, for all tests of this room."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.monitoring.observed import ObservedStack

if TYPE_CHECKING:
    from collections.abc import Iterator

# The exporter looks at the engines more often, so that the law of decode steps rests on enough looks within a minute of load.
TIME_FACTOR = 0.2
_PACKAGES = {
    "prometheus": "prometheus",
    "prometheus-node-exporter": "prometheus-node-exporter",
    "prometheus-alertmanager": "prometheus-alertmanager",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/monitoring" in str(item.path):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedStack]:
    """The stack under a real Prometheus with the rendered configuration, exporters and Alertmanager beside it.

    After a transport proof, a mixed load, a run of the canary and a look at the contract: what can move has moved.
    """
    missing = [package for command, package in _PACKAGES.items() if not shutil.which(command)]
    if missing:
        pytest.skip(f"needs a real Prometheus: apt-get install --no-install-recommends {' '.join(missing)}")
    watched = ObservedStack(tmp_path_factory.mktemp("observed"), overrides=(f"monitoring.time_factor={TIME_FACTOR}",))
    try:
        watched.up()
        watched.stack.run("transport", "prove")
        watched.load(2)
        watched.stack.run("canary")
        watched.stack.run("contract", "watch", "--once")
        yield watched
    finally:
        watched.down()
