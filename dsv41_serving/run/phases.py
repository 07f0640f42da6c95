"""Follow a start in the log of the service itself.

The texts are those of SGLang 0.5.23 and sglang-router 0.3.2; `tests/engine` fails when one of them no longer appears.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41_serving.plan.model import ServiceKind

LAUNCHING = "importing"
GATE = "gate"
WARM_UP = "warming up"
READY = "ready"


@dataclass(frozen=True)
class Phase:
    """One phase of a start: it begins when a log line contains `marker`."""

    name: str
    marker: str


_ENGINE = (
    Phase("loading weights", "Load weight begin"),
    Phase("allocating KV", "Load weight end"),
    Phase("capturing graphs", "CUDA graph begin"),
    Phase("opening port", "max_total_num_tokens="),
    Phase("serving HTTP", "Application startup complete"),
)
_ROUTER = (
    Phase("registering workers", "Starting router on"),
    Phase("serving HTTP", "Activated"),
)

_SHARDS = re.compile(r"(?:shards|safetensors)[^\n]*?(\d+)/(\d+)")


def phases_of(kind: ServiceKind) -> tuple[Phase, ...]:
    """Return the phases a service of `kind` reports in its log, in order."""
    return _ROUTER if kind == "router" else _ENGINE


class PhaseTracker:
    """The phase a service is in, judged from its log lines. Phases only go forward."""

    def __init__(self, kind: ServiceKind) -> None:
        """Begin before the first line."""
        self._ahead = list(phases_of(kind))
        self.phase = LAUNCHING
        self.detail = ""

    def feed(self, line: str) -> bool:
        """Read one log line; return whether the phase or its detail changed."""
        for index, phase in enumerate(self._ahead):
            if phase.marker in line:
                self.phase, self.detail = phase.name, ""
                del self._ahead[: index + 1]
                return True
        shards = _SHARDS.search(line)
        if shards and self.phase == "loading weights":
            detail = f"shard {shards[1]} of {shards[2]}"
            changed = detail != self.detail
            self.detail = detail
            return changed
        return False
