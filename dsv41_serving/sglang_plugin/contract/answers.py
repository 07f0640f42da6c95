"""Count how answers end, and how long their first token took by whether the prompt was cached.

The engine exports neither: a 200 without content looks like any other 200, and in its one histogram of first tokens a prompt
that was computed hides among those that were not.

The metrics are made on the first answer, and their library imported then: it decides at import whether metrics are shared
between processes, and SGLang sets up the directory for that after it has loaded its plug-ins.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

Ending = Literal["stop", "length", "abort", "empty", "other"]
# As in SGLang's own histogram, coarser: two label values double it.
FIRST_TOKEN_BUCKETS = (0.1, 0.2, 0.4, 0.8, 2.0, 4.0, 10.0, 20.0, 40.0, 100.0, 400.0)


def judge_ending(reason: dict[str, Any] | None, generated_tokens: int) -> Ending:
    """Return how an answer ended: `empty` when nothing but its end was generated."""
    kind = (reason or {}).get("type")
    if kind == "stop":
        return "empty" if generated_tokens <= 1 else "stop"
    if kind == "length":
        return "length"
    return "abort" if kind == "abort" else "other"


def judge_prompt(prompt_tokens: int, cached_tokens: int) -> Literal["cached", "uncached"]:
    """Return `cached` when at least half of a prompt came from a cache."""
    return "cached" if 2 * cached_tokens >= prompt_tokens else "uncached"


def count_answer(result: Any, manager: Any, state: Any, received: Any, index: int) -> Any:
    """Count a finished request, after the engine has counted it; prefill's half of a request is no answer."""
    if state.finished and manager.disaggregation_mode.value != "prefill":
        ending = judge_ending(received.finished_reasons[index], received.completion_tokens[index])
        _answers().labels(ending).inc()
        # Of a request that is not streamed the first token is the last; an aborted one may never have had one.
        if getattr(state.obj, "stream", False) and ending in {"stop", "length"}:
            prompt = judge_prompt(received.prompt_tokens[index], received.cached_tokens[index])
            _first_tokens().labels(prompt).observe(state.time_stats.get_first_token_latency())
    return result


@cache
def _answers() -> Counter:
    from prometheus_client import Counter  # noqa: PLC0415 - see above

    return Counter("dsv41_answers_total", "Finished answers by how they ended.", ["ending"])


@cache
def _first_tokens() -> Histogram:
    from prometheus_client import Histogram  # noqa: PLC0415 - see above

    return Histogram(
        "dsv41_first_token_seconds",
        "Time to the first token of streamed answers, by whether at least half of the prompt was cached.",
        ["prompt"],
        buckets=FIRST_TOKEN_BUCKETS,
    )
