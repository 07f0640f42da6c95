"""An error has one shape, whatever SGLang 0.5.23 called it."""

from __future__ import annotations

from typing import Any

import pytest

from dsv41_serving.sglang_plugin.contract.errors import describe_validation, reshape

TOO_LONG = "The input (9005 tokens) is longer than the model's context length (8192 tokens)."
TOO_MUCH = "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested ..."
BAD_SCHEMA = "Tool 3 function has invalid 'parameters' schema: 'strin' is not valid\n\nFailed validating 'anyOf' in ..."
LONE_ENGINE = "Invalid request: Disaggregated request received without bootstrap room id. req.rid='9a61'"


def flat(message: str, code: int = 400) -> dict[str, Any]:
    """Return the body of SGLang's handlers."""
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": code}


@pytest.mark.parametrize(
    ("found", "message", "param", "code"),
    [
        (flat(TOO_LONG), TOO_LONG, "messages", "context_length_exceeded"),
        (flat(TOO_MUCH), TOO_MUCH, "messages", "context_length_exceeded"),
        (
            flat(BAD_SCHEMA),
            "Tool 3 function has invalid 'parameters' schema: 'strin' is not valid",
            "tools[3].function.parameters",
            "invalid_function_parameters",
        ),
        (flat("Tools cannot be empty if tool choice is set to required."), None, "tool_choice", "invalid_value"),
        (flat("Tool 'x' not found in tools list."), None, "tool_choice", "invalid_value"),
        (flat("temperature must be a non-negative finite number, got -1.0."), None, "temperature", "invalid_value"),
        (
            flat(LONE_ENGINE),
            "this engine is one half of a prefill/decode pair; send requests to the router",
            None,
            "invalid_value",
        ),
        ({"error": {"message": TOO_LONG}}, TOO_LONG, "messages", "context_length_exceeded"),
        ({"error": {"message": "m", "type": "t", "param": "p", "code": 400}}, "m", "p", "invalid_value"),
        ({"error": "just words"}, "just words", None, None),
        ({"detail": "Bad"}, "Bad", None, "invalid_value"),
        ("<html>", "<html>", None, None),
    ],
)
def test_what_the_client_did_wrong(found: Any, message: str | None, param: str | None, code: str | None) -> None:
    shaped = reshape(400, found)
    said = message if message is not None else found["message"]
    assert shaped == {"error": {"message": said, "type": "invalid_request_error", "param": param, "code": code}}


def test_what_the_server_did_wrong_is_called_so() -> None:
    assert reshape(503, flat("Scheduler is gone", 503)) == {
        "error": {"message": "Scheduler is gone", "type": "server_error", "param": None, "code": None}
    }


def test_openai_own_shape_is_kept() -> None:
    own = {"error": {"message": "m", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}
    assert reshape(404, own) == own


def test_an_endpoint_that_does_not_exist() -> None:
    assert reshape(404, flat("Not Found", 404))["error"] == {
        "message": "Not Found",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "missing_required_parameter",
            "messages[0].content: Field required",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "invalid_value",
            "messages[0].content: Input should be a valid list or Input should be a valid string",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
            "tools[0].function",
            "missing_required_parameter",
            "tools[0].function: Field required",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
            "temperature",
            "invalid_value",
            "temperature: Input should be a valid number, unable to parse string as a number",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "stop": 5},
            "stop",
            "invalid_value",
            "stop: Input should be a valid list or Input should be a valid string",
        ),
    ],
)
def test_a_validation_error_names_the_place_as_the_client_wrote_it(
    body: dict[str, Any], param: str, code: str, message: str
) -> None:
    """SGLang's own models; the names of union members are not the client's business."""
    from pydantic import ValidationError
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    with pytest.raises(ValidationError) as error:
        ChatCompletionRequest.model_validate(body)
    errors = [{**found, "loc": ("body", *found["loc"])} for found in error.value.errors()]
    refusal = describe_validation(errors)
    assert (refusal.param, refusal.code, refusal.message) == (param, code, message)
    assert refusal.status == 400


def test_a_validation_error_without_a_place() -> None:
    errors = [{"loc": ("header", "content-type"), "msg": "Only 'application/json' is allowed", "type": "value_error"}]
    assert describe_validation(errors).message == "content-type: Only 'application/json' is allowed"
    assert describe_validation([]).message == "the request is not valid"
