"""The other two chat APIs: where the front serves them, the table holds there too."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.clause import Outcome, clause, judge, unless
from dsv41_serving.contract.deployment import QUESTION
from dsv41_serving.contract.reply import NoAnswerError, is_openai_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.contract.deployment import Deployment

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
LENGTH = 16
NO_SUCH_MODEL = "no-such-model"


@clause("messages-api")
async def messages_api(deployment: Deployment) -> Outcome:
    """Anthropic's Messages API, where it is served, has the served name, the table's thinking and an error for another name."""
    request: dict[str, Any] = {"messages": list(QUESTION), "max_tokens": LENGTH}
    answer = await _ask(deployment, MESSAGES, request)
    if isinstance(answer, Outcome):
        return answer
    blocks = [block.get("type") for block in answer.get("content") or []]
    return await _judge(deployment, MESSAGES, request, answer, thinks="thinking" in blocks)


@clause("responses-api")
async def responses_api(deployment: Deployment) -> Outcome:
    """OpenAI's Responses API, where it is served, has the served name, the table's thinking and an error for another name."""
    request: dict[str, Any] = {"input": str(QUESTION[0]["content"]), "max_output_tokens": LENGTH}
    answer = await _ask(deployment, RESPONSES, request)
    if isinstance(answer, Outcome):
        return answer
    # An unfinished block of reasoning may be left out of the output; its tokens are counted.
    details = (answer.get("usage") or {}).get("output_tokens_details") or {}
    return await _judge(deployment, RESPONSES, request, answer, thinks=details.get("reasoning_tokens", 0) > 0)


async def _ask(deployment: Deployment, path: str, request: Mapping[str, Any]) -> dict[str, Any] | Outcome:
    """Return the answer to `request`, or that the API is not served here. Raises NoAnswerError, httpx.HTTPError."""
    response = await deployment.post(path, {"model": deployment.contract.served_model_name, **request})
    if response.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED}:
        return Outcome("skip", "served, or refused", f"not served here: {path} is {response.status_code}")
    if response.is_error:
        raise NoAnswerError(f"{path} says {response.status_code}: {' '.join(response.text.split())[:160]}")
    body: dict[str, Any] = response.json()
    return body


async def _judge(
    deployment: Deployment, path: str, request: Mapping[str, Any], answer: Mapping[str, Any], *, thinks: bool
) -> Outcome:
    name, default = deployment.contract.served_model_name, deployment.contract.thinking
    other = await deployment.post(path, {"model": NO_SUCH_MODEL, **request})
    refused = other.is_client_error and is_openai_error(other.json())
    return judge(
        f"model {name}, {'reasoning' if default else 'no reasoning'}, a 4xx for another name",
        f"model {answer.get('model')}, {'reasoning' if thinks else 'no reasoning'}, {other.status_code}",
        unless(answer.get("model") == name, "another name"),
        unless(thinks is default, "not the table's thinking"),
        unless(refused, "another name is not refused with a reason"),
    )


CLAUSES = (messages_api, responses_api)
