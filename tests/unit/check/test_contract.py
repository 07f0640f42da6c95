"""What engines report at /contract, against the plan and against each other."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.check.contract import judge_reports
from tests.unit.run.fake_plan import report_of

if TYPE_CHECKING:
    from dsv41_serving.plan import Plan


def reports(plan: Plan, **changes: Any) -> dict[str, Any]:
    """Return two equal reports of the plan's contract; `changes` go into decode's, by dotted path."""
    both = {name: report_of(plan.contract) for name in ("prefill", "decode")}
    for dotted, value in changes.items():
        table: Any = both["decode"]
        *path, key = dotted.split("__")
        for part in path:
            table = table[part]
        table[key] = value
    return both


def test_engines_that_hold_the_plan_pass(plan: Plan) -> None:
    assert judge_reports(plan, reports(plan)) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"contract__thinking": False}, "decode: thinking is False, the plan says True"),
        ({"contract__aliases": ["other"]}, "decode: aliases is ['other'], the plan says []"),
        (
            {"in_force__served_model_name": "/models/x"},
            "decode: served_model_name is '/models/x', the plan says 'deepseek-v4.1-flash'",
        ),
        ({"in_force__reasoning_parser": None}, "decode: reasoning_parser is None, the plan says 'deepseek-v41'"),
        ({"in_force__tool_call_parser": None}, "decode: tool_call_parser is None, the plan says 'deepseekv41'"),
        ({"in_force__thinking": False}, "decode: thinking is False, the plan says True"),
        ({"in_force__reasoning_effort": ""}, "decode: reasoning_effort is '', the plan says 'high'"),
        ({"in_force__strict_thinking": True}, "decode: strict_thinking is True, the plan says False"),
        ({"in_force__cache_report": False}, "decode: cache_report is False, the plan says True"),
        ({"in_force__sampling__temperature": 1.0}, "decode: sampling.temperature is 1.0, the plan says 0.6"),
        ({"in_force__sampling": {}}, "decode: sampling.temperature is None, the plan says 0.6"),
        ({"in_force__context_length": 4096}, "decode: context_length is 4096, prefill says 8192"),
        ({"versions__sglang": "0.5.24"}, "decode: sglang is '0.5.24', prefill says '0.5.23'"),
    ],
)
def test_a_difference_is_named(plan: Plan, changes: dict[str, Any], problem: str) -> None:
    assert judge_reports(plan, reports(plan, **changes))[0] == problem


def test_sampling_left_to_the_checkpoint_must_only_be_the_same_everywhere(plan: Plan) -> None:
    """The plan does not know the checkpoint's values; the engines must agree on them."""
    left = plan.model_copy(update={"contract": plan.contract.model_copy(update={"temperature": "checkpoint"})})
    both = reports(left, in_force__sampling={"temperature": 1.0, "top_p": 0.95})
    same = copy.deepcopy(both)
    same["prefill"]["in_force"]["sampling"] = {"temperature": 1.0, "top_p": 0.95}
    assert judge_reports(left, same) == []
    (problem,) = judge_reports(left, both)
    assert problem.startswith("decode: sampling is {'temperature': 1.0, 'top_p': 0.95}, prefill says {")
