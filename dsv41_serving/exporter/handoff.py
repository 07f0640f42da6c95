"""What the hand-off could do on this node: the speed and the transport that were measured before serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.exporter import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family

STORED = Path("transport") / "proof.json"


class HandoffSource:
    """The stored measurement. Nothing while nobody has measured."""

    name = "handoff"

    def __init__(self, state_dir: str) -> None:
        """Read below `state_dir`."""
        self._path = Path(state_dir) / STORED

    def read(self) -> Iterable[Family]:
        """Return speed and lane of the measurement. Raises ValueError or KeyError when the file is damaged."""
        try:
            proof = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        baseline, lane = metrics.HANDOFF_BASELINE.family(), metrics.HANDOFF_LANE.family()
        baseline.add_metric([], float(proof["best_gb_s"]))
        lane.add_metric([str(proof["lane"])], 1)
        yield baseline
        yield lane
