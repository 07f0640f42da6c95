"""Count how answers end. The engine exports no such number, and a 200 without content looks like any other 200.

The counter is made on the first answer, and its library imported then: it decides at import whether metrics are shared between
processes, and SGLang sets up the directory for that after it has loaded its plug-ins.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client import Counter

Ending = Literal["stop", "length", "abort", "empty", "other"]


def judge_ending(reason: dict[str, Any] | None, generated_tokens: int) -> Ending:
    """Return how an answer ended: `empty` when nothing but its end was generated."""
    kind = (reason or {}).get("type")
    if kind == "stop":
        return "empty" if generated_tokens <= 1 else "stop"
    if kind == "length":
        return "length"
    return "abort" if kind == "abort" else "other"


def count_answer(result: Any, manager: Any, state: Any, received: Any, index: int) -> Any:
    """Count a finished request, after the engine has counted it; prefill's half of a request is no answer."""
    if state.finished and manager.disaggregation_mode.value != "prefill":
        ending = judge_ending(received.finished_reasons[index], received.completion_tokens[index])
        _answers().labels(ending).inc()
    return result


@cache
def _answers() -> Counter:
    from prometheus_client import Counter  # noqa: PLC0415 - see above

    return Counter("dsv41_answers_total", "Finished answers by how they ended.", ["ending"])
