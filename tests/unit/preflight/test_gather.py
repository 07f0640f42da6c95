"""What the preflight does to a node by looking at it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.facts import read_facts
from dsv41_serving.preflight import gather
from dsv41_serving.run.record import Records, own_start_ticks
from dsv41_serving.spec import load_spec
from tests.unit.run.fake_plan import fake_plan, record_services

if TYPE_CHECKING:
    import pytest


def test_the_hand_off_is_measured_unless_something_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside running engines it would disturb them, measure their load, and on GPUs find no memory."""
    measured: list[str] = []
    monkeypatch.setattr(gather, "keep_baseline", lambda _spec, plan, *_, **__: measured.append(plan.state_dir))
    loaded = load_spec(
        profile="embedded", overrides=(f"node.state_dir={tmp_path}", f"node.cache_dir={tmp_path / 'cache'}")
    )
    facts = read_facts()
    assert gather.gather_scene(loaded, facts, Path("/"), python=sys.executable).traces.running == ()
    assert measured == [str(tmp_path)]
    record_services(fake_plan(tmp_path))
    records = Records(tmp_path)
    for record in records.read_services():
        records.write_service(record.model_copy(update={"pid": os.getpid(), "start_ticks": own_start_ticks()}))
    scene = gather.gather_scene(loaded, facts, Path("/"), python=sys.executable)
    assert scene.traces.running == ("decode", "prefill", "router")
    assert measured == [str(tmp_path)]
