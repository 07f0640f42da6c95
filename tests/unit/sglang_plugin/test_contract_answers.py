"""How answers are counted by their ending, with objects of the shape SGLang passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from dsv41_serving.sglang_plugin.contract import answers


@pytest.mark.parametrize(
    ("reason", "tokens", "ending"),
    [
        ({"type": "stop", "matched": 1}, 12, "stop"),
        ({"type": "stop", "matched": 1}, 1, "empty"),
        ({"type": "stop"}, 0, "empty"),
        ({"type": "length", "length": 1}, 1, "length"),
        ({"type": "abort", "message": "x"}, 5, "abort"),
        ({"type": "new"}, 5, "other"),
        (None, 5, "other"),
    ],
)
def test_an_ending_is_judged_by_reason_and_length(reason: dict[str, Any] | None, tokens: int, ending: str) -> None:
    assert answers.judge_ending(reason, tokens) == ending


class Pages:
    """A registry of its own in the place of the engine's page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._registry = CollectorRegistry()
        counter = Counter("dsv41_answers_total", "x", ["ending"], registry=self._registry)
        first = Histogram("dsv41_first_token_seconds", "x", ["prompt"], registry=self._registry)
        monkeypatch.setattr(answers, "_answers", lambda: counter)
        monkeypatch.setattr(answers, "_first_tokens", lambda: first)

    def value(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, labels)


def finished(*, stream: bool, cached: int = 0, role: str = "decode", ended: bool = True, reason: str = "stop") -> Any:
    """Return what SGLang passes for the second of two requests: 100 prompt tokens, the first token after 1.5 s."""
    return (
        SimpleNamespace(disaggregation_mode=SimpleNamespace(value=role)),
        SimpleNamespace(
            finished=ended,
            obj=SimpleNamespace(stream=stream),
            time_stats=SimpleNamespace(get_first_token_latency=lambda: 1.5),
        ),
        SimpleNamespace(
            finished_reasons=[None, {"type": reason}],
            completion_tokens=[3, 9],
            prompt_tokens=[7, 100],
            cached_tokens=[7, cached],
        ),
        1,
    )


@pytest.mark.parametrize(
    ("role", "ended", "counted"),
    [("decode", True, 1), ("null", True, 1), ("prefill", True, None), ("decode", False, None)],
)
def test_only_finished_answers_of_the_half_that_answers_count(
    monkeypatch: pytest.MonkeyPatch, role: str, *, ended: bool, counted: int | None
) -> None:
    pages, result = Pages(monkeypatch), object()
    assert answers.count_answer(result, *finished(stream=False, role=role, ended=ended)) is result
    assert pages.value("dsv41_answers_total", ending="stop") == counted


@pytest.mark.parametrize(("cached", "prompt"), [(0, "uncached"), (49, "uncached"), (50, "cached"), (100, "cached")])
def test_a_first_token_counts_by_whether_half_of_its_prompt_was_cached(
    monkeypatch: pytest.MonkeyPatch, cached: int, prompt: str
) -> None:
    pages = Pages(monkeypatch)
    answers.count_answer(None, *finished(stream=True, cached=cached))
    assert pages.value("dsv41_first_token_seconds_sum", prompt=prompt) == 1.5
    assert pages.value("dsv41_first_token_seconds_count", prompt=prompt) == 1


@pytest.mark.parametrize(("stream", "reason"), [(False, "stop"), (True, "abort")], ids=["whole", "aborted"])
def test_what_has_no_first_token_of_its_own_is_left_out(
    monkeypatch: pytest.MonkeyPatch, *, stream: bool, reason: str
) -> None:
    """The first token of an answer in one piece is its last; an aborted one may never have had one."""
    pages = Pages(monkeypatch)
    answers.count_answer(None, *finished(stream=stream, reason=reason))
    assert pages.value("dsv41_first_token_seconds_count", prompt="uncached") is None
    assert pages.value("dsv41_answers_total", ending=reason) == 1
