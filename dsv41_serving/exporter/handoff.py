"""What the hand-off could do on this node: the speed and the lane that the transport proof found before serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.exporter import metrics
from dsv41_serving.transport.proof import read_proof

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family


class HandoffSource:
    """The stored proof. Nothing while nobody has measured."""

    name = "handoff"

    def __init__(self, state_dir: str) -> None:
        """Read below `state_dir`."""
        self._state_dir = state_dir

    def read(self) -> Iterable[Family]:
        """Return speed and lane of the slowest pair of ranks."""
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
        lane.add_metric([proof.lane], 1)
        return baseline, prompt, lane
