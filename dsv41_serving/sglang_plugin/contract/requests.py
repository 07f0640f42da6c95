"""What each endpoint accepts: a request body in, the fields to replace in it out, or a refusal.

Pure. What SGLang itself refuses well (types, ranges, tool schemas) is left to it; here is what it would ignore, alter or
hang on, and what the table `[contract]` decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from dsv41_serving.sglang_plugin.contract.errors import (
    MISSING,
    MODEL_NOT_FOUND,
    UNKNOWN,
    UNSUPPORTED,
    Refusal,
)
from dsv41_serving.sglang_plugin.contract.thinking import normalise_thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsv41_serving.spec.model import Contract

Body = dict[str, Any]

# What stands in `model` when the client sent none: SGLang's own default, and the word sglang-router 0.3.2 puts there.
NO_MODEL = (None, "", "default", "unknown")
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "latest_reminder")
# Parameters of OpenAI's API that only concern its billing, storage, caching or speed: accepted, without effect.
NO_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
    }
)
# Parameters that would change the answer and cannot be honoured -> what to do instead.
REFUSED = {
    "audio": "the model answers in text",
    "best_of": "send n",
    "chat_template": "the prompt encoder is V4.1's own",
    "function_call": "send tool_choice",
    "functions": "send tools",
    "suffix": "the model does not fill in the middle",
    "verbosity": "ask for it in the prompt",
    "web_search_options": "the model does not search",
}
_HOTTEST = 2
_TEXT_PARTS = frozenset({"text", "thinking", "reasoning", "refusal", "tool_reference"})


@dataclass(frozen=True)
class Engine:
    """What the rules need to know of the engine that runs."""

    context_length: int
    """Longest prompt plus answer, in tokens."""
    sampling: Mapping[str, float]
    """Temperature and top_p of a request that names none, as the engine's chat handler resolved them."""
    chat_fields: frozenset[str] = field(default=frozenset())
    """Fields SGLang knows in a chat completion."""
    completion_fields: frozenset[str] = field(default=frozenset())
    """Fields SGLang knows in a completion."""


def prepare_chat(body: Body, contract: Contract, engine: Engine) -> Body:
    """Return what to replace in the body of a chat completion. Raises Refusal."""
    _check_fields(body, engine.chat_fields)
    changes = resolve_model(body, contract)
    _check_messages(body.get("messages"), contract)
    _check_choices(body, contract)
    _check_temperature(body)
    _check_length(body, ("max_completion_tokens", "max_tokens"), contract, engine)
    return {**changes, **normalise_thinking(body, contract.max_thinking_tokens), **_report_usage(body, contract)}


def prepare_completion(body: Body, contract: Contract, engine: Engine) -> Body:
    """Return what to replace in the body of a completion. Raises Refusal.

    SGLang's completions know no generation_config.json, so the sampling defaults are written into the request.
    """
    _check_fields(body, engine.completion_fields)
    changes = resolve_model(body, contract)
    _check_choices(body, contract)
    _check_temperature(body)
    _check_length(body, ("max_tokens",), contract, engine)
    sampling = {key: engine.sampling[key] for key in ("temperature", "top_p") if key in engine.sampling}
    return {
        **changes,
        **{key: value for key, value in sampling.items() if body.get(key) is None},
        **_report_usage(body, contract),
    }


def prepare_tokenize(body: Body, contract: Contract, _engine: Engine) -> Body:
    """Return what to replace in a request that asks for the token ids of a prompt or a conversation. Raises Refusal."""
    changes = resolve_model(body, contract)
    if body.get("messages") is None:
        return changes
    _check_messages(body["messages"], contract)
    return {**changes, **normalise_thinking(body, contract.max_thinking_tokens)}


def prepare_responses(body: Body, contract: Contract, engine: Engine) -> Body:
    """Return what to replace in a request of OpenAI's Responses API. Raises Refusal."""
    changes = resolve_model(body, contract)
    _check_length(body, ("max_output_tokens",), contract, engine)
    return changes


def prepare_messages(body: Body, contract: Contract, engine: Engine) -> Body:
    """Return what to replace in a request of Anthropic's Messages API. Raises Refusal."""
    changes = resolve_model(body, contract)
    _check_length(body, ("max_tokens",), contract, engine)
    return changes


ROUTES: dict[str, Callable[[Body, Contract, Engine], Body]] = {
    "/v1/chat/completions": prepare_chat,
    "/invocations": prepare_chat,
    "/v1/completions": prepare_completion,
    "/v1/responses": prepare_responses,
    "/v1/messages": prepare_messages,
    "/v1/messages/count_tokens": prepare_messages,
    "/v1/tokenize": prepare_tokenize,
    "/tokenize": prepare_tokenize,
}


def resolve_model(body: Body, contract: Contract) -> Body:
    """Return the canonical model name as a change. Raises Refusal (404) for a name that is not served."""
    name = body.get("model")
    if name not in NO_MODEL and name != contract.served_model_name and name not in contract.aliases:
        served = ", ".join(f"'{known}'" for known in (contract.served_model_name, *contract.aliases))
        raise Refusal(
            f"The model {name!r:.120} does not exist; this server serves {served}",
            "model",
            MODEL_NOT_FOUND,
            HTTPStatus.NOT_FOUND,
        )
    return {"model": contract.served_model_name}


def _check_fields(body: Body, known: frozenset[str]) -> None:
    for name, value in body.items():
        if value is None or name in NO_EFFECT:
            continue
        if name in REFUSED:
            raise Refusal(f"{name} is not supported: {REFUSED[name]}", name, UNSUPPORTED)
        if name == "modalities" and value == ["text"]:
            continue
        if name not in known and name != "reasoning":
            raise Refusal(f"Unknown parameter: '{name:.60}'", name[:60], UNKNOWN)


def _check_messages(messages: Any, contract: Contract) -> None:
    if messages is None:
        raise Refusal("messages is missing", "messages", MISSING)
    if not isinstance(messages, list) or not messages:
        raise Refusal("messages must be a list with at least one message", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise Refusal(f"messages[{index}] must be an object", f"messages[{index}]")
        role = message.get("role")
        if not isinstance(role, str) or role.lower() not in ROLES:
            where = f"messages[{index}].role"
            raise Refusal(f"{where} must be one of {', '.join(ROLES)}, not {role!r:.60}", where)
        content = message.get("content")
        if isinstance(content, list) and not contract.images:
            _check_parts(content, f"messages[{index}].content")


def _check_parts(parts: list[Any], where: str) -> None:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in _TEXT_PARTS:
            param = f"{where}[{index}]"
            raise Refusal(f"{param} is '{kind:.40}': this server reads text only", param, UNSUPPORTED)


def _check_choices(body: Body, contract: Contract) -> None:
    count = body.get("n")
    if count is not None and (not _is_int(count) or not 1 <= count <= contract.max_choices):
        raise Refusal(f"n must be an integer from 1 to {contract.max_choices}, not {count!r:.40}", "n")


def _check_temperature(body: Body) -> None:
    """Hold the temperature to the range of OpenAI's API, as sglang-router 0.3.2 does; SGLang itself knows no upper end."""
    value = body.get("temperature")
    if isinstance(value, int | float) and not 0 <= value <= _HOTTEST:
        raise Refusal(f"temperature must be from 0 to {_HOTTEST}, not {value!r:.40}", "temperature")


def _check_length(body: Body, names: tuple[str, ...], contract: Contract, engine: Engine) -> None:
    """Judge the answer length a client names. SGLang takes 0 as 'no limit' and prefers one of two names in silence."""
    given = {name: body[name] for name in names if body.get(name) is not None}
    limit = min(contract.max_tokens_limit or engine.context_length, engine.context_length)
    for name, value in given.items():
        if not _is_int(value) or not 1 <= value <= limit:
            raise Refusal(f"{name} must be an integer from 1 to {limit}, not {value!r:.40}", name)
    if len(set(given.values())) > 1:
        raise Refusal(f"{' and '.join(given)} disagree; send one of them", names[-1])


def _report_usage(body: Body, contract: Contract) -> Body:
    options = body.get("stream_options")
    if not body.get("stream") or not contract.stream_usage:
        return {}
    if options is None:
        return {"stream_options": {"include_usage": True}}
    if isinstance(options, dict) and options.get("include_usage") is None:
        return {"stream_options": {**options, "include_usage": True}}
    return {}


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
