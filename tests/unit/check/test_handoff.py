"""The lane of the running hand-off against the proven one: a silent fall-back fails, with the reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.check import handoff
from dsv41_serving.check.handoff import check_lane, judge_lane
from dsv41_serving.run.record import Records, ServiceRecord
from dsv41_serving.transport.proof import Proof, list_environments, store_proof
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Plan


def prove(plan: Plan, **changes: object) -> Proof:
    values: dict[str, object] = {
        "date": "2026-11-30",
        "node": "n",
        "user": "dsv41",
        "kernel_release": "6.8",
        "driver_version": None,
        "backend": "UCX",
        "lane": "cuda_ipc",
        "best_gb_s": 230.0,
        "prompt_ms": 3.0,
        "reason": "",
        "remedy": "",
        "pairs": (),
        "provenance": {},
        "environment": list_environments(plan),
    }
    return Proof.model_validate({**values, **changes})


@pytest.mark.parametrize(("lane", "passed"), [("cuda_ipc", True), ("shm", False), ("tcp", False), ("unknown", True)])
def test_a_lane_slower_than_the_proven_one_fails(plan: Plan, lane: str, *, passed: bool) -> None:
    assert judge_lane(plan, "prefill", lane, prove(plan)).passed is passed


def test_what_changed_since_is_the_reason(plan: Plan) -> None:
    environment = list_environments(plan)
    environment["prefill"]["UCX_TLS"] = "cuda_ipc,tcp"
    found = judge_lane(plan, "prefill", "tcp", prove(plan, environment=environment))
    assert found.seen == "hands over through tcp, where cuda_ipc at 230.00 GB/s was proven on 2026-11-30"
    assert found.remedy == (
        "UCX_TLS was cuda_ipc,tcp then and is cuda_ipc,cuda_copy,sm,tcp,self now: restore it, or prove again"
    )
    same = judge_lane(plan, "prefill", "tcp", prove(plan))
    assert same.remedy.startswith("the engine was refused what the proof was allowed")


def test_a_slow_lane_that_was_proven_slow_passes_and_says_so(plan: Plan) -> None:
    """The start has said it too; refusing would leave a machine without shared memory nothing to run."""
    proof = prove(plan, lane="tcp", best_gb_s=1.2, reason="sockets", remedy="add cma")
    found = judge_lane(plan, "prefill", "tcp", proof)
    assert (found.passed, found.seen) == (True, "over tcp, slow as proven (1.20 GB/s): sockets; mend: add cma")
    assert judge_lane(plan, "prefill", "cuda_ipc", proof).passed


def test_without_a_baseline_nothing_is_compared(plan: Plan) -> None:
    assert judge_lane(plan, "prefill", "tcp", None).seen == "over tcp; never measured here: dsv41 transport prove"


def record(name: str, lane: str) -> ServiceRecord:
    return ServiceRecord(
        name=name,
        kind=name,
        state="ready",
        phase="ready",
        supervisor_pid=1,
        port=1,
        url="",
        metrics_url="",
        model="m",
        started_at=0.0,
        phase_at=0.0,
        lane=lane,
    )


def test_records_and_baseline_are_read_from_the_state_directory(tmp_path: Path, two_sockets: Facts) -> None:
    plan = plan_for(two_sockets, "h200x8", f"node.state_dir={tmp_path}")
    store_proof(prove(plan), str(tmp_path))
    records = Records(tmp_path)
    records.write_service(record("prefill", "tcp"))
    records.write_service(record("decode", "cuda_ipc"))
    (found,) = asyncio.run(check_lane(plan))
    assert (found.service, found.check, found.passed) == ("prefill", "lane", False)


def test_an_engine_that_says_nothing_is_waited_for_and_passes(
    tmp_path: Path, two_sockets: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "_PATIENCE_S", 0.2)
    plan = plan_for(two_sockets, "h200x8", f"node.state_dir={tmp_path}")
    store_proof(prove(plan), str(tmp_path))
    Records(tmp_path).write_service(record("prefill", ""))
    (found,) = asyncio.run(check_lane(plan))
    assert (found.passed, found.seen) == (True, "the engine did not say over which lane it writes; proven: cuda_ipc")


def test_a_shape_without_a_pair_has_no_lane(two_sockets: Facts) -> None:
    assert asyncio.run(check_lane(plan_for(two_sockets, "h200x8", "shape=replicas"))) == []
