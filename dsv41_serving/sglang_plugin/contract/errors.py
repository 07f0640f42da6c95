"""The shapes of an error: what a client gets, whoever refused its request.

OpenAI's body is `{"error": {"message", "type", "param", "code"}}`. SGLang 0.5.23 has three of its own: the same keys without
the outer `error`, the outer `error` with a number as code, and a bare message. Only statuses that the routers keep are
used for refusals, 400 and 404: sglang-router 0.3.2 turns 422 and 429 of an engine into 500.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

INVALID_VALUE = "invalid_value"
INVALID_JSON = "invalid_json"
MISSING = "missing_required_parameter"
UNKNOWN = "unknown_parameter"
UNSUPPORTED = "unsupported_parameter"
MODEL_NOT_FOUND = "model_not_found"
CONTEXT_LENGTH = "context_length_exceeded"
BAD_TOOL_SCHEMA = "invalid_function_parameters"

# What SGLang 0.5.23 says -> code and parameter; {0} is the first group of the pattern.
_KNOWN: tuple[tuple[re.Pattern[str], str, str | None], ...] = (
    (re.compile(r"is longer than the model's context length"), CONTEXT_LENGTH, "messages"),
    (re.compile(r"exceeds the model's maximum context length"), CONTEXT_LENGTH, "messages"),
    (re.compile(r"^Tool (\d+) function has invalid"), BAD_TOOL_SCHEMA, "tools[{0}].function.parameters"),
    (re.compile(r"^Tool (\d+) function 'parameters' schema"), BAD_TOOL_SCHEMA, "tools[{0}].function.parameters"),
    (re.compile(r"^Tools? (cannot be empty|'.*' not found)"), INVALID_VALUE, "tool_choice"),
    (re.compile(r"^([a-z_]+) must be "), INVALID_VALUE, "{0}"),
)
_BOOTSTRAP = re.compile(r"Disaggregated request received without bootstrap room id")
_BOOTSTRAP_REMEDY = "this engine is one half of a prefill/decode pair; send requests to the router"
_LONGEST_MESSAGE = 600
# Names of pydantic's union members in an error location: classes, and tags such as `list[str]` or `function-after[...]`.
_UNION_MEMBER = re.compile(r"^[A-Z]|[\[\(]|^function-|^(str|int|float|bool|dict|list|none)$")


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818 - an answer to a client, not a fault of this program
    """Why a request is not served. Raised while it is read; the middleware answers with it."""

    message: str
    param: str | None = None
    code: str = INVALID_VALUE
    status: int = HTTPStatus.BAD_REQUEST


def describe(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return OpenAI's body of an error."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe_anthropic(status: int, message: str) -> dict[str, Any]:
    """Return Anthropic's body of an error, for its Messages API."""
    kinds = {HTTPStatus.NOT_FOUND: "not_found_error", HTTPStatus.BAD_REQUEST: "invalid_request_error"}
    return {"type": "error", "error": {"type": kinds.get(HTTPStatus(status), "api_error"), "message": message}}


def reshape(status: int, body: Any) -> dict[str, Any]:
    """Return OpenAI's body for the error `body` that SGLang answered with `status`; OpenAI's own is returned as it is."""
    found = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(found, dict):
        return describe(status, str(found))
    if found is not body and set(found) == {"message", "type", "param", "code"} and not isinstance(found["code"], int):
        return {"error": found}
    message = str(found.get("message") or found.get("detail") or HTTPStatus(status).phrase)
    if status != HTTPStatus.BAD_REQUEST:
        return describe(status, message)
    param, code = _recognise(message)
    if _BOOTSTRAP.search(message):
        message = _BOOTSTRAP_REMEDY
    # A schema error goes on to quote the metaschema; its first line is what a person needs.
    return describe(status, message.partition("\n")[0][:_LONGEST_MESSAGE], found.get("param") or param, code)


def describe_validation(errors: Sequence[dict[str, Any]]) -> Refusal:
    """Return the refusal for what pydantic found wrong in a request body; the first place counts.

    A message is one of two models, and pydantic reports the errors of both; the wrong one always finds fault with the role.
    """
    if not errors:
        return Refusal("the request is not valid")
    elsewhere = [error for error in errors if error["loc"][-1] != "role"]
    first = (elsewhere or errors)[0]
    param = _locate(first["loc"])
    same_place = [error for error in errors if _locate(error["loc"]) == param]
    reasons = sorted({str(error["msg"]).removeprefix("Value error, ") for error in same_place})
    message = f"{param}: {' or '.join(reasons)}" if param else " or ".join(reasons)
    return Refusal(
        message[:_LONGEST_MESSAGE],
        param=param or None,
        code=MISSING if first["type"] == "missing" else INVALID_VALUE,
    )


def _recognise(message: str) -> tuple[str | None, str]:
    for pattern, code, param in _KNOWN:
        found = pattern.search(message)
        if found:
            return (param.format(*found.groups()) if param else None), code
    return None, INVALID_VALUE


def _locate(loc: Sequence[Any]) -> str:
    """Return a location as a client writes it, `messages[0].role`; names of union members are left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in {"body", "header"} and not _UNION_MEMBER.search(str(part)):
            path += f".{part}" if path else str(part)
    return path
