"""What becomes of a field on its way through a router, and the committed record of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("sglang", reason="SGLang is not installed; install the extra `engine`")

from pydantic import BaseModel

from dsv41_serving.bench import router_fields
from dsv41_serving.bench.router_fields import (
    ROUTERS,
    Case,
    chat_cases,
    completion_cases,
    judge_arrival,
    look,
)
from dsv41_serving.errors import InputError
from dsv41_serving.resources import data_dir

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize(
    ("sent", "arrived", "elsewhere", "outcome"),
    [
        ("a", "a", "", ("passed", "")),
        (0, 0, "", ("passed", "")),
        ("a", None, "", ("dropped", "")),
        (3, None, "max_completion_tokens", ("changed", "arrives as max_completion_tokens")),
        (0.7, 0.699999988079071, "", ("changed", "arrives as 0.699999988079071: 32 bits")),
        (0.7, 0.8, "", ("changed", "arrives as 0.8")),
        ({"a": 1, "b": 2}, {"a": 1}, "", ("changed", 'arrives as {"a": 1}')),
        (None, "unknown", "", ("changed", 'arrives as "unknown"')),
    ],
)
def test_outcomes(sent: Any, arrived: Any, elsewhere: str, outcome: tuple[str, str]) -> None:
    assert judge_arrival(sent, arrived, elsewhere) == outcome


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("model", "m"),
        ("messages[1].name", "Ada"),
        ("messages[1]", {"name": "Ada"}),
        ("messages[2].name", None),
        ("absent.deep", None),
        ("model.deep", None),
    ],
)
def test_paths(path: str, found: Any) -> None:
    assert look({"model": "m", "messages": [{}, {"name": "Ada"}]}, path) == found


def test_a_value_is_found_elsewhere_only_when_nothing_else_explains_it() -> None:
    """Defaults that the router adds, and values the client also sent, are no new name of the field."""
    case = Case("max_tokens", "max_tokens", {"max_tokens": 3, "n": 2})
    found = router_fields._find_elsewhere
    assert found(case, {"n": 2, "max_completion_tokens": 3}, {}) == "max_completion_tokens"
    assert found(case, {"n": 2, "default": 3}, {"default": 3}) == ""
    same = Case("max_dynamic_patch", "max_dynamic_patch", {"max_dynamic_patch": 2, "n": 2})
    assert found(same, {"n": 2, "limit": 2}, {}) == ""


def test_a_field_without_a_sample_is_an_error_that_says_where_to_put_one() -> None:
    """A new SGLang with a new field cannot be probed without somebody noticing."""

    class Request(BaseModel):
        model: str
        novelty: int = 0

    with pytest.raises(InputError) as error:
        list(router_fields._field_cases(Request, {}, {"model": "m"}, {}))
    assert str(error.value) == ("Request: no sample for novelty; add one to dsv41_serving/bench/request_samples.py")


def test_no_sample_is_the_fields_default() -> None:
    """Else a dropped field would look as if it had passed."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest

    for model, cases in ((ChatCompletionRequest, chat_cases()), (CompletionRequest, completion_cases())):
        for case in cases:
            if case.label in model.model_fields and case.label != "model":
                assert look(case.body, case.path) != model.model_fields[case.label].default, case.label


def test_the_committed_record_has_every_field() -> None:
    """And nothing that is not sent any more."""
    record = json.loads((data_dir("deploy") / "contract" / "router-fields.json").read_text(encoding="utf-8"))
    assert set(record["routers"]) == set(ROUTERS)
    for found in record["routers"].values():
        assert set(found["chat"]) == {case.label for case in chat_cases()}
        assert set(found["completions"]) == {case.label for case in completion_cases()}
        for row in [*found["chat"].values(), *found["completions"].values()]:
            assert row["outcome"] in {"passed", "dropped", "changed", "refused"}
            assert ("how" in row) == (row["outcome"] in {"changed", "refused"})
