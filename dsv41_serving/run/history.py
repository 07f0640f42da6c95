"""How long each phase of a start took before, so that progress can say what to expect."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

KEPT_STARTS = 10


class StartHistory:
    """Durations of the phases of one service's successful starts, in `state_dir/history/NAME.json`."""

    def __init__(self, state_dir: str | Path, service: str) -> None:
        """Use the history of `service` below `state_dir`."""
        self._path = Path(state_dir) / "history" / f"{service}.json"

    def expected_s(self, phase: str) -> float | None:
        """Return the median seconds `phase` took, or None when it was never recorded."""
        durations = [start[phase] for start in self._read() if isinstance(start.get(phase), int | float)]
        return statistics.median(durations) if durations else None

    def add(self, durations: dict[str, float]) -> None:
        """Remember one successful start: phase -> seconds."""
        starts = [*self._read(), durations][-KEPT_STARTS:]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(starts), encoding="utf-8")
        temporary.replace(self._path)

    def _read(self) -> list[dict[str, float]]:
        try:
            starts = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return []
        return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
