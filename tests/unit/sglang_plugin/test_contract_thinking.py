"""Every spelling of thinking and effort means one thing; two that disagree, or a value nobody knows, is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dsv41_serving.sglang_plugin.contract.errors import Refusal
from dsv41_serving.sglang_plugin.contract.thinking import normalise_thinking, parse_effort
from dsv41_serving.spec.model import EFFORT_BUDGETS


def kwargs_of(**body: Any) -> Any:
    """Return the chat_template_kwargs that SGLang gets."""
    return normalise_thinking(body).get("chat_template_kwargs")


def test_a_request_that_says_nothing_is_left_alone() -> None:
    """The engine's own default decides."""
    assert normalise_thinking({"messages": [], "thinking": None, "chat_template_kwargs": {}}) == {}


@pytest.mark.parametrize(
    ("body", "thinking"),
    [
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning": {"enabled": True}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, False),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": False}}, False),
    ],
)
def test_every_spelling_of_thinking(body: dict[str, Any], *, thinking: bool) -> None:
    assert kwargs_of(**body) == {"thinking": thinking}


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": 30}, 30),
        ({"reasoning_effort": "30"}, 30),
        ({"reasoning_effort": 0.3}, 30),
        ({"chat_template_kwargs": {"reasoning_effort": "max"}}, "max"),
        ({"reasoning": {"effort": 100}}, 100),
        ({"reasoning_effort": "medium", "chat_template_kwargs": {"reasoning_effort": 75}}, "medium"),
    ],
)
def test_every_spelling_of_effort_turns_thinking_on(body: dict[str, Any], effort: Any) -> None:
    """It ends where the encoder reads numbers; where pydantic would refuse one, nothing is left."""
    changes = normalise_thinking(body)
    assert changes["chat_template_kwargs"] == {"thinking": True, "reasoning_effort": effort}
    assert (changes["reasoning_effort"], changes["reasoning"], changes["thinking"]) == (None, None, None)


def test_effort_has_nothing_to_act_on_without_thinking() -> None:
    assert kwargs_of(thinking={"type": "disabled"}, reasoning_effort="high") == {"thinking": False}


def test_other_template_arguments_survive() -> None:
    assert kwargs_of(chat_template_kwargs={"spaces_between_special_tokens": False}, reasoning_effort="low") == {
        "spaces_between_special_tokens": False,
        "thinking": True,
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"thinking": {"type": "enabled"}, "reasoning": {"enabled": False}}, "thinking.type", "invalid_value"),
        (
            {"chat_template_kwargs": {"thinking": True, "enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
            "invalid_value",
        ),
        ({"reasoning_effort": "none", "thinking": {"type": "enabled"}}, "reasoning_effort", "invalid_value"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort", "invalid_value"),
        ({"thinking": {"type": "auto"}}, "thinking", "invalid_value"),
        ({"thinking": {"type": ["enabled"]}}, "thinking", "invalid_value"),
        ({"thinking": True}, "thinking", "invalid_value"),
        ({"thinking": {}}, "thinking", "invalid_value"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            "thinking.budget_tokens",
            "unsupported_parameter",
        ),
        ({"chat_template_kwargs": {"thinking": "false"}}, "chat_template_kwargs.thinking", "invalid_value"),
        ({"chat_template_kwargs": {"thinking": 1}}, "chat_template_kwargs.thinking", "invalid_value"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs", "invalid_value"),
        (
            {"chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template",
            "unsupported_parameter",
        ),
        ({"chat_template_kwargs": {"tone": "x"}}, "chat_template_kwargs.tone", "unknown_parameter"),
        ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens", "unsupported_parameter"),
    ],
)
def test_what_contradicts_itself_or_is_unknown_is_refused(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        normalise_thinking(body)
    assert (refused.value.param, refused.value.code, refused.value.status) == (param, code, 400)


def test_a_thinking_budget_is_enforced_where_the_contract_limits_thinking() -> None:
    """SGLang's strict thinking reads it from the request's custom parameters."""
    body = {"thinking": {"type": "enabled", "budget_tokens": 40}, "custom_params": {"a": 1}}
    assert normalise_thinking(body, 100)["custom_params"] == {"a": 1, "thinking_budget": 40}
    assert "custom_params" not in normalise_thinking({"thinking": {"type": "disabled", "budget_tokens": 40}}, 100)


@pytest.mark.parametrize("budget", [0, 101, "40", 40.0, True])
def test_a_thinking_budget_beyond_the_contract_is_refused(budget: Any) -> None:
    with pytest.raises(Refusal) as refused:
        normalise_thinking({"thinking": {"type": "enabled", "budget_tokens": budget}}, 100)
    assert refused.value.message == f"thinking.budget_tokens must be an integer from 1 to 100, not {budget!r}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [(1, 1), (100, 100), ("1", 1), ("100", 100), (50.0, 50), (0.0, 1), (0.004, 1), (0.99, 99), ("0.5", 50)],
)
def test_numbers_are_budgets(written: Any, meant: int) -> None:
    assert parse_effort(written) == meant


@pytest.mark.parametrize("tier", ["none", *EFFORT_BUDGETS])
def test_tiers_stay_names(tier: str) -> None:
    assert parse_effort(tier) == tier


@pytest.mark.parametrize(
    "nonsense", [0, 101, -1, 1.5, 100.5, "0", "101", "-5", "Low", "", "1e1", True, [], {}, float("nan"), float("inf")]
)
def test_nonsense_is_refused_with_everything_that_would_be_accepted(nonsense: Any) -> None:
    with pytest.raises(Refusal) as refused:
        parse_effort(nonsense)
    assert refused.value.param == "reasoning_effort"
    assert "none, minimal, low, medium, high, xhigh, ultra, max, or a budget from 1 to 100" in refused.value.message


def test_the_mapping_is_the_encoders_own() -> None:
    """The budgets in the table are what deepseek-recipe writes for each tier."""
    recipe = pytest.importorskip("deepseek_recipe")
    options, encoding = recipe.ConversionOptions(), recipe.DeepseekV41Encoding()
    for tier, budget in EFFORT_BUDGETS.items():
        body = {
            "model": "DeepSeek-V4.1-Flash",
            "messages": [{"role": "user", "content": "x"}],
            "thinking": {"type": "enabled"},
            "reasoning_effort": tier,
        }
        conversation = recipe.ChatCompletionRequest(body).convert(options).conversation
        assert f"Reasoning Effort: {budget} (" in encoding.render_conversation(conversation).prompt
