"""How answers are counted by their ending, with objects of the shape SGLang passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

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


@pytest.mark.parametrize(
    ("role", "finished", "counted"),
    [("decode", True, 1), ("null", True, 1), ("prefill", True, 0), ("decode", False, 0)],
)
def test_only_finished_answers_of_the_half_that_answers_count(
    monkeypatch: pytest.MonkeyPatch, role: str, *, finished: bool, counted: int
) -> None:
    counter = Counter("dsv41_answers_total", "x", ["ending"], registry=CollectorRegistry())
    monkeypatch.setattr(answers, "_answers", lambda: counter)
    manager = SimpleNamespace(disaggregation_mode=SimpleNamespace(value=role))
    received = SimpleNamespace(finished_reasons=[None, {"type": "stop"}], completion_tokens=[3, 9])
    result = object()
    assert answers.count_answer(result, manager, SimpleNamespace(finished=finished), received, 1) is result
    assert counter.labels("stop")._value.get() == counted
