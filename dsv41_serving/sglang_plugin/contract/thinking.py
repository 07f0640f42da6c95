"""The spellings of thinking and effort in a request, as the one that SGLang's V4.1 encoder reads.

Thinking: `thinking.type` (DeepSeek's API), `chat_template_kwargs.thinking` (SGLang), `chat_template_kwargs.enable_thinking`
(other models' spelling), `reasoning.enabled`. Effort: `reasoning_effort`, `chat_template_kwargs.reasoning_effort`,
`reasoning.effort`. SGLang 0.5.23 ignores some of them in silence, prefers others in silence, and refuses numbers.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dsv41_serving.sglang_plugin.contract.errors import UNKNOWN, UNSUPPORTED, Refusal
from dsv41_serving.spec.model import EFFORT_BUDGETS

if TYPE_CHECKING:
    from collections.abc import Mapping

# deepseek-recipe 0.2.0 renders `adaptive` as `enabled`.
_TYPES = {"enabled": True, "adaptive": True, "disabled": False}
_KWARGS = frozenset({"thinking", "enable_thinking", "reasoning_effort", "spaces_between_special_tokens"})
_REASONING = frozenset({"effort", "enabled"})
_NUMBER = re.compile(r"(0|[1-9]\d{0,2})(\.\d{1,6})?")
_LOWEST, _HIGHEST = 1, 100

Said = dict[str, Any]
"""Parameter as the client wrote it -> its value."""


def normalise_thinking(body: Mapping[str, Any], longest: int = 0) -> dict[str, Any]:
    """Return the fields of `body` to replace so that what the client said of thinking and effort is what SGLang does.

    `longest` is the largest `thinking.budget_tokens`; 0 refuses any, because SGLang then enforces none.
    Raises Refusal when two parameters disagree or one has a value the encoder does not know.
    """
    kwargs = _read_table(body, "chat_template_kwargs", _KWARGS, UNKNOWN)
    reasoning = _read_table(body, "reasoning", _REASONING, UNSUPPORTED)
    budget = _read_budget(body.get("thinking"), longest)
    thinking = _read_thinking(body, kwargs, reasoning)
    effort = _read_effort(body, kwargs, reasoning)
    if effort == "none":
        if thinking is True:
            raise Refusal(
                "reasoning_effort 'none' turns thinking off, another parameter turns it on", "reasoning_effort"
            )
        thinking, effort = False, None
    elif effort is not None and thinking is None:
        thinking = True
    if thinking is None:
        return {}
    wanted = {key: value for key, value in kwargs.items() if key not in {"enable_thinking", "reasoning_effort"}}
    wanted["thinking"] = thinking
    if effort is not None and thinking:
        wanted["reasoning_effort"] = effort
    changes = {"chat_template_kwargs": wanted, "thinking": None, "reasoning": None, "reasoning_effort": None}
    if budget is not None and thinking:
        changes["custom_params"] = {**(body.get("custom_params") or {}), "thinking_budget": budget}
    return changes


def _read_table(body: Mapping[str, Any], name: str, known: frozenset[str], code: str) -> dict[str, Any]:
    table = body.get(name)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise Refusal(f"{name} must be an object", name)
    given = {key: value for key, value in table.items() if value is not None}
    for key in given:
        if key == "chat_template":
            raise Refusal(f"{name}.{key} is not supported: the encoder is V4.1's own", f"{name}.{key}", UNSUPPORTED)
        if key not in known:
            raise Refusal(f"{name} knows {', '.join(sorted(known))}, not {key!r:.60}", f"{name}.{key:.60}", code)
    return given


def _read_thinking(body: Mapping[str, Any], kwargs: Said, reasoning: Said) -> bool | None:
    said = {
        "chat_template_kwargs.thinking": kwargs.get("thinking"),
        "chat_template_kwargs.enable_thinking": kwargs.get("enable_thinking"),
        "reasoning.enabled": reasoning.get("enabled"),
    }
    for param, value in said.items():
        if value is not None and not isinstance(value, bool):
            raise Refusal(f"{param} must be true or false, not {value!r}", param)
    said["thinking.type"] = _read_type(body.get("thinking"))
    agreed: bool | None = _agree(said)
    return agreed


def _read_type(thinking: Any) -> bool | None:
    if thinking is None:
        return None
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise Refusal(
            f"thinking must be {{'type': 'enabled' | 'disabled' | 'adaptive'}}, not {thinking!r:.80}", "thinking"
        )
    for key in thinking:
        if key not in {"type", "budget_tokens"}:
            raise Refusal(f"thinking.{key} is not supported: use reasoning_effort", f"thinking.{key}", UNSUPPORTED)
    return _TYPES[kind]


def _read_budget(thinking: Any, longest: int) -> int | None:
    """Return `thinking.budget_tokens`: after so many tokens the answer must begin."""
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if budget is None:
        return None
    param = "thinking.budget_tokens"
    if not longest:
        raise Refusal(
            f"{param} is not supported: nothing limits thinking here; use reasoning_effort", param, UNSUPPORTED
        )
    if not isinstance(budget, int) or isinstance(budget, bool) or not 1 <= budget <= longest:
        raise Refusal(f"{param} must be an integer from 1 to {longest}, not {budget!r:.40}", param)
    return budget


def _read_effort(body: Mapping[str, Any], kwargs: Said, reasoning: Said) -> str | int | None:
    said = {
        "reasoning_effort": body.get("reasoning_effort"),
        "chat_template_kwargs.reasoning_effort": kwargs.get("reasoning_effort"),
        "reasoning.effort": reasoning.get("effort"),
    }
    agreed: str | int | None = _agree(
        {param: parse_effort(value, param) for param, value in said.items() if value is not None}
    )
    return agreed


def parse_effort(value: Any, param: str = "reasoning_effort") -> str | int:
    """Return `value` as a tier the encoder names or a budget in 1..100. Raises Refusal for anything else.

    A fraction below 1 is a share of 100, as in SGLang; a string of digits is the number it spells, because one router
    passes strings only.
    """
    number = value
    if isinstance(value, str):
        if value == "none" or value in EFFORT_BUDGETS:
            return value
        number = json.loads(value) if _NUMBER.fullmatch(value) else None
    if isinstance(number, float) and 0 <= number < 1:
        return max(_LOWEST, round(number * _HIGHEST))
    if isinstance(number, int | float) and not isinstance(number, bool) and number in range(_LOWEST, _HIGHEST + 1):
        return int(number)
    tiers = ", ".join(["none", *EFFORT_BUDGETS])
    raise Refusal(f"{param} must be one of {tiers}, or a budget from {_LOWEST} to {_HIGHEST}, not {value!r:.80}", param)


def _agree(said: Said) -> Any:
    """Return the one value that was said, or None. Raises Refusal when there are two."""
    given = [(param, value) for param, value in said.items() if value is not None]
    if not given:
        return None
    first, value = given[0]
    for other, contrary in given[1:]:
        if EFFORT_BUDGETS.get(contrary, contrary) != EFFORT_BUDGETS.get(value, value):
            raise Refusal(f"{first} and {other} disagree; send one of them", other)
    return value
