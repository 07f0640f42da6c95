"""Errors: what cannot be served is a 4xx that says why, in the form OpenAI's clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.clause import clause, judge, unless
from dsv41_serving.contract.reply import NoAnswerError, is_openai_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.contract.clause import Outcome
    from dsv41_serving.contract.deployment import Deployment, Server

NOT_FOUND = 404
FALLBACK_CONTEXT = 8192


@clause("error-model", needs=())
async def error_model(deployment: Deployment) -> Outcome:
    """An unknown model is refused with its name, here and by every engine."""
    body = deployment.body(model="no-such-model", max_tokens=1)
    behind = [engine for engine in deployment.engines if engine != deployment.front]
    outcomes = [await _refused(deployment, body, "no-such-model", server) for server in (deployment.front, *behind)]
    return next((outcome for outcome in outcomes if outcome.verdict == "MISS"), outcomes[0])


@clause("error-length", needs=())
async def error_length(deployment: Deployment) -> Outcome:
    """A prompt longer than the context is refused, not cut."""
    entry = (await deployment.get_json("/v1/models"))["data"][0]
    context = entry.get("max_model_len") or await _ask_engines(deployment) or FALLBACK_CONTEXT
    text = "word " * (context + 64)
    return await _refused(deployment, deployment.body(messages=[{"role": "user", "content": text}], max_tokens=1))


@clause("error-json", needs=())
async def error_json(deployment: Deployment) -> Outcome:
    """A body that is not JSON is refused."""
    return await _refused(deployment, b'{"model": ')


@clause("error-tool-schema", needs=())
async def error_tool_schema(deployment: Deployment) -> Outcome:
    """A tool whose schema is none is refused."""
    tool = {"type": "function", "function": {"name": "broken", "parameters": {"type": "nonsense"}}}
    return await _refused(deployment, deployment.body(tools=[tool], max_tokens=1))


@clause("error-image", needs=())
async def error_image(deployment: Deployment) -> Outcome:
    """Images are refused unless the table passes them on."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    body = deployment.body(
        messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, image]}], max_tokens=1
    )
    if deployment.contract.images:
        response = await deployment.post("/v1/chat/completions", body)
        return judge(
            "not refused as such",
            response.status_code,
            unless("only supports text" not in response.text, response.text[:120]),
        )
    return await _refused(deployment, body)


@clause("error-stream", needs=())
async def error_stream(deployment: Deployment) -> Outcome:
    """A stream that cannot begin is a 4xx that names the reason, not an open stream."""
    response = await deployment.post(
        "/v1/chat/completions", deployment.body(model="no-such-model", stream=True, max_tokens=1)
    )
    return judge(
        "4xx that names 'no-such-model'",
        f"{response.status_code}: {' '.join(response.text.split())[:160]}",
        unless(response.is_client_error, "no 4xx"),
        unless("no-such-model" in response.text, "no reason"),
    )


async def _ask_engines(deployment: Deployment) -> int:
    for engine in deployment.engines:
        entry = (await deployment.get_json("/v1/models", engine))["data"][0]
        if entry.get("max_model_len"):
            return int(entry["max_model_len"])
    return 0


async def _refused(
    deployment: Deployment, body: Mapping[str, Any] | bytes, names: str = "", server: Server | None = None
) -> Outcome:
    response = await deployment.post("/v1/chat/completions", body, server)
    try:
        shaped = is_openai_error(response.json())
    except ValueError:
        shaped = False
    if response.is_server_error:
        raise NoAnswerError(f"HTTP {response.status_code}: {response.text[:160]}")
    return judge(
        "4xx with error.message and error.type",
        f"{server.name + ' ' if server else ''}{response.status_code}: {' '.join(response.text.split())[:160]}",
        unless(response.is_client_error, "it was served"),
        unless(not response.is_client_error or shaped, "not in OpenAI's form"),
        unless(not response.is_client_error or names in response.text, f"it does not name '{names}'"),
    )


CLAUSES = (error_model, error_length, error_json, error_tool_schema, error_image, error_stream)
