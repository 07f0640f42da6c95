"""Is the hand-off that runs now as good as the one that was proven: the lane each prefill writes over, against the baseline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dsv41_serving.check.result import Finding
from dsv41_serving.run.record import Records
from dsv41_serving.transport.lanes import UNKNOWN, is_slower
from dsv41_serving.transport.proof import hands_over, list_environments, read_proof

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Plan
    from dsv41_serving.transport.proof import Proof

CHECK = "lane"
_PATIENCE_S = 5.0
_POLL_S = 0.1


async def check_lane(plan: Plan) -> list[Finding]:
    """Return one finding for each prefill of `plan`, once a hand-off has taken place; none where nothing is handed over.

    The supervisor reads what UCX prints; its record may come a moment after the answer.
    """
    if not hands_over(plan):
        return []
    names = [engine.name for engine in plan.engines if engine.kind == "prefill"]
    records = Records(plan.state_dir)
    lanes: dict[str, str] = {}
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        lanes = {record.name: record.lane for record in records.read_services() if record.name in names and record.lane}
        if len(lanes) == len(names):
            break
        await asyncio.sleep(_POLL_S)
    proof = read_proof(plan.state_dir)
    return [judge_lane(plan, name, lanes.get(name, UNKNOWN), proof) for name in names]


def judge_lane(plan: Plan, name: str, lane: str, proof: Proof | None) -> Finding:
    """Return whether prefill `name`, which writes over `lane`, does as well as `proof`."""
    if proof is None:
        return _passed(name, f"over {lane}; never measured here: dsv41 transport prove")
    if lane == UNKNOWN:
        return _passed(name, f"the engine did not say over which lane it writes; proven: {proof.lane}")
    if is_slower(lane, proof.lane):
        return Finding(
            service=name,
            check=CHECK,
            passed=False,
            seen=f"hands over through {lane}, where {proof.lane} at {proof.best_gb_s:.2f} GB/s was proven on {proof.date}",
            remedy=_explain(plan, name, proof),
        )
    if proof.reason:
        return _passed(
            name, f"over {lane}, slow as proven ({proof.best_gb_s:.2f} GB/s): {proof.reason}; mend: {proof.remedy}"
        )
    return _passed(name, f"over {lane}, as proven at {proof.best_gb_s:.2f} GB/s")


def _explain(plan: Plan, name: str, proof: Proof) -> str:
    before, now = proof.environment.get(name, {}), list_environments(plan)[name]
    changed = sorted(key for key in {**before, **now} if before.get(key) != now.get(key))
    if changed:
        key = changed[0]
        return f"{key} was {before.get(key, 'absent')} then and is {now.get(key, 'absent')} now: restore it, or prove again"
    return "the engine was refused what the proof was allowed: `dsv41 transport prove` as the service user says what"


def _passed(name: str, seen: str) -> Finding:
    return Finding(service=name, check=CHECK, passed=True, seen=seen)
