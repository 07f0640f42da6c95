"""What the hand-off could do on this node, as the transport proof found before serving, and the lane it takes now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.exporter import metrics
from dsv41_serving.run.record import Records
from dsv41_serving.transport.lanes import is_slower
from dsv41_serving.transport.proof import read_proof

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family


class HandoffSource:
    """The stored proof, and what the supervisors of running engines read in their logs. Nothing while nobody has measured."""

    name = "handoff"

    def __init__(self, state_dir: str) -> None:
        """Read below `state_dir`."""
        self._state_dir = state_dir

    def read(self) -> Iterable[Family]:
        """Return speed of the slowest pair of ranks, and the lane: of the running hand-off, before the first one the proven."""
        proof = read_proof(self._state_dir)
        if proof is None:
            return ()
        baseline, prompt, lane = (
            metrics.HANDOFF_BASELINE.family(),
            metrics.HANDOFF_PROMPT.family(),
            metrics.HANDOFF_LANE.family(),
        )
        baseline.add_metric([], proof.best_gb_s)
        prompt.add_metric([], proof.prompt_gb_s)
        lane.add_metric([self._find_running_lane() or proof.lane], 1)
        return baseline, prompt, lane

    def _find_running_lane(self) -> str:
        """Return the slowest lane that a living engine writes over; empty when none has said."""
        slowest = ""
        for record in Records(self._state_dir).read_services():
            if record.lane and record.alive and (not slowest or is_slower(record.lane, slowest)):
                slowest = record.lane
        return slowest
