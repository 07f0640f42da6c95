from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.facts import Facts, read_facts
from dsv41_serving.run.record import ServiceRecord, current_boot
from tests.fixtures.machines.build import build_machine

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def make_record() -> Callable[..., ServiceRecord]:
    """Make the record of a service; keywords replace what an idle prefill engine would have."""

    def make(**changes: Any) -> ServiceRecord:
        now = time.time()
        values: dict[str, Any] = {
            "name": "prefill",
            "kind": "prefill",
            "state": "waiting",
            "phase": "waiting",
            "boot": current_boot(),
            "supervisor_pid": os.getpid(),
            "port": 30100,
            "url": "http://127.0.0.1:30100",
            "metrics_url": "http://127.0.0.1:30100/metrics",
            "model": "deepseek-v4.1-flash",
            "started_at": now,
            "phase_at": now,
        }
        return ServiceRecord(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Return the machine without a GPU."""
    return read_facts(build_machine("laptop", tmp_path_factory.mktemp("machines")))
