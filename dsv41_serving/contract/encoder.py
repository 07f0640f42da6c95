"""Render a chat request as DeepSeek-V4.1's reference encoder (deepseek_recipe) does, under the meaning SGLang gives its fields.

The engine reaches the same encoder through code of its own; this module is the second, independent way that the golden
encodings are made with. Where SGLang departs from the reference on purpose, `_to_reference` says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import deepseek_recipe
from tokenizers import Tokenizer

from dsv41_serving.embedded.special_tokens import IMAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

REFERENCE_MODEL = "DeepSeek-V4.1-Flash"
EFFORT_LINE = "Reasoning Effort: {budget}"
HIGH_BUDGET = 75


class RefusedError(Exception):
    """The reference encoder does not accept the request; the text says why."""


@dataclass(frozen=True)
class Encoding:
    """A prompt as text and as token ids, up to and including the token after which the model writes."""

    prompt: str
    token_ids: tuple[int, ...]


class Encoder:
    """The reference encoder over one tokenizer.

    Prompts carry every special token as text. Raises ValueError when the tokenizer is not a `tokenizer.json`.
    """

    def __init__(self, tokenizer_json: str) -> None:
        """Attach the V4.1 encoding to the tokenizer in `tokenizer_json` (the content of a tokenizer.json file)."""
        tokens = deepseek_recipe.SpecialTokens(image=IMAGE)
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._options = deepseek_recipe.ConversionOptions().with_special_tokens(tokens)
        self._encoding = (
            deepseek_recipe.DeepseekV41Encoding()
            .with_special_tokens(tokens)
            .with_tokenizer(deepseek_recipe.Tokenizer.from_str(tokenizer_json))
        )

    def encode(self, request: Mapping[str, Any], *, thinking: bool = True, effort: str = "") -> Encoding:
        """Return the prompt of a chat completions `request`.

        `thinking` and `effort` are the contract's defaults, used where the request is silent. Raises RefusedError.
        """
        body, budget = _to_reference(request, thinking=thinking, effort=effort)
        try:
            conversation = deepseek_recipe.ChatCompletionRequest(body).convert(self._options).conversation
        except (deepseek_recipe.ConversionError, ValueError) as error:
            raise RefusedError(str(error)) from error
        prompt = self._encoding.render_conversation(conversation).prompt
        ids = list(self._encoding.encode(conversation))
        if budget is not None and body["thinking"]["type"] == "enabled":
            prompt = prompt.replace(_effort_line(HIGH_BUDGET), _effort_line(budget), 1)
            ids = self._replace_budget(ids, budget)
        return Encoding(prompt=prompt, token_ids=tuple(ids))

    def spell(self, token_id: int) -> str:
        """Return the text of one token, special tokens included."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of `token_ids`, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def _replace_budget(self, ids: list[int], budget: int) -> list[int]:
        """Put another number in the effort line; it opens the prompt, so the first match is the line."""
        old = self._tokenizer.encode(_effort_line(HIGH_BUDGET), add_special_tokens=False).ids
        new = self._tokenizer.encode(_effort_line(budget), add_special_tokens=False).ids
        start = next(i for i in range(len(ids)) if ids[i : i + len(old)] == old)
        return ids[:start] + new + ids[start + len(old) :]


def _effort_line(budget: int) -> str:
    return EFFORT_LINE.format(budget=budget)


def _to_reference(request: Mapping[str, Any], *, thinking: bool, effort: str) -> tuple[dict[str, Any], int | None]:
    """Return the body in the reference's own dialect, and the effort as a number from 1 to 100 where it is one.

    Departures of SGLang 0.5.23 from the reference: a required or named tool choice renders as `auto`, because its grammar
    makes the model open the block of calls; with a named one the other tools are not shown; a last assistant message that
    is not continued is rendered as a user's.
    """
    options = dict(request.get("chat_template_kwargs") or {})
    level = options.get("reasoning_effort", request.get("reasoning_effort"))
    on = _asks_thinking(request, options, level, default=thinking)
    body: dict[str, Any] = {
        "model": REFERENCE_MODEL,
        "messages": [_to_reference_message(message) for message in request["messages"]],
        "thinking": {"type": "enabled" if on else "disabled"},
    }
    if request.get("response_format") is not None:
        body["response_format"] = request["response_format"]
    if request.get("tools") and request.get("tool_choice") != "none":
        body |= {"tools": _shown_tools(request), "tool_choice": "auto"}
    _mark_last(body["messages"], continued=bool(request.get("continue_final_message")))
    if level in (None, "none"):
        level = effort or None
    budget = _budget(level)
    if budget is not None:
        body["reasoning_effort"] = "high"
    elif level is not None:
        body["reasoning_effort"] = level
    return body, budget


def _shown_tools(request: Mapping[str, Any]) -> list[Any]:
    choice = request.get("tool_choice")
    if not isinstance(choice, dict):
        return list(request["tools"])
    return [tool for tool in request["tools"] if tool["function"]["name"] == choice["function"]["name"]]


def _asks_thinking(request: Mapping[str, Any], options: Mapping[str, Any], level: object, *, default: bool) -> bool:
    """Return whether the request thinks: what it says in `chat_template_kwargs`, else `thinking`, else by its effort."""
    if "thinking" in options:
        return bool(options["thinking"])
    config = request.get("thinking")
    if isinstance(config, dict) and "type" in config:
        return bool(config["type"] != "disabled")
    return default if level is None else level != "none"


def _budget(level: object) -> int | None:
    """Return a numeric effort as the reference's 1 to 100; SGLang also takes fractions of 1."""
    if isinstance(level, bool) or level is None:
        return None
    if isinstance(level, int):
        return level
    if isinstance(level, float):
        return max(1, round(level * 100))
    return None


def _to_reference_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return `message` with `developer` as a system message, null content empty and arguments as JSON text."""
    converted = json.loads(json.dumps(message))
    if converted["role"] == "developer":
        converted["role"] = "system"
    if converted.get("content") is None:
        converted["content"] = ""
    for call in converted.get("tool_calls") or []:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return cast("dict[str, Any]", converted)


def _mark_last(messages: list[dict[str, Any]], *, continued: bool) -> None:
    if not messages or messages[-1]["role"] != "assistant" or not isinstance(messages[-1]["content"], str):
        return
    if continued:
        messages[-1] = {key: value for key, value in messages[-1].items() if key != "tool_calls"} | {"prefix": True}
    else:
        messages[-1] = {"role": "user", "content": messages[-1]["content"]}
