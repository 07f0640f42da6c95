"""An answer is judged by its body: every fault that looks like success from outside is one."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import httpx
import pytest

from dsv41_serving.check.conversation import Answer, converse, judge

MODEL = "deepseek-v4.1-flash"
GOOD: dict[str, Any] = {
    "model": MODEL,
    "choices": [{"message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the good reply with one value replaced."""
    reply = copy.deepcopy(GOOD)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = reply
    for part in parents:
        place = place[part]
    place[last] = value
    return reply


def test_a_good_answer_has_no_problem() -> None:
    """Content and token counts are passed on."""
    assert judge(GOOD, MODEL) == Answer(content="Paris.", prompt_tokens=12, completion_tokens=3, problem="")


def test_an_answer_that_ran_to_its_limit_is_good() -> None:
    """The question asks for few tokens."""
    assert judge(changed("choices.0.finish_reason", "length"), MODEL).problem == ""


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("model", "default", f"model is 'default', not '{MODEL}'"),
        ("choices.0.message.content", "", "content is empty"),
        ("choices.0.message.content", " \n", "content is empty"),
        ("choices.0.message.content", None, "content is empty"),
        ("choices.0.finish_reason", "abort", "finish_reason is 'abort'"),
        ("choices.0.finish_reason", None, "finish_reason is None"),
        (
            "usage.prompt_tokens",
            0,
            "usage counts no tokens: {'prompt_tokens': 0, 'completion_tokens': 3}",
        ),
        (
            "usage.completion_tokens",
            0,
            "usage counts no tokens: {'prompt_tokens': 12, 'completion_tokens': 0}",
        ),
    ],
)
def test_each_fault_is_named(path: str, value: object, problem: str) -> None:
    """Alone."""
    assert judge(changed(path, value), MODEL).problem == problem


def test_all_faults_are_named_together() -> None:
    """One reply, one line."""
    reply = changed("choices.0.message.content", "")
    reply["model"] = "x"
    assert judge(reply, MODEL).problem == f"model is 'x', not '{MODEL}'; content is empty"


@pytest.mark.parametrize("body", [{}, {"error": "x"}, {**GOOD, "choices": []}, {**GOOD, "usage": None}])
def test_what_is_no_completion_is_not_judged(body: dict[str, Any]) -> None:
    """The caller says so with the body."""
    with pytest.raises((KeyError, IndexError, TypeError)):
        judge(body, MODEL)


def ask(status: int, body: str, seen: list[httpx.Request] | None = None) -> Answer:
    """Hold the conversation with a server that replies so."""

    def reply(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        return httpx.Response(status, text=body)

    async def run() -> Answer:
        async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as client:
            return await converse(client, "http://router", MODEL)

    return asyncio.run(run())


def test_the_question_is_short_deterministic_and_without_thinking() -> None:
    """So that it costs little and its answer has content."""
    seen: list[httpx.Request] = []
    assert ask(200, json.dumps(GOOD), seen).problem == ""
    (request,) = seen
    assert str(request.url) == "http://router/v1/chat/completions"
    body = json.loads(request.content)
    assert (body["model"], body["temperature"], body["chat_template_kwargs"]) == (MODEL, 0, {"thinking": False})
    assert body["max_tokens"] <= 32


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (503, "no worker\n", "HTTP 503: no worker"),
        (200, "<html>", "the body is not a chat completion (JSONDecodeError: "),
        (200, "{}", "the body is not a chat completion (KeyError: 'choices'): {}"),
        (200, '{"choices": []}', "the body is not a chat completion (IndexError: "),
        (200, "[]", "the body is not a chat completion (TypeError: "),
    ],
)
def test_a_reply_that_is_no_answer_is_quoted(status: int, body: str, problem: str) -> None:
    """Status or body, whichever shows the fault."""
    answer = ask(status, body)
    assert answer.problem.startswith(problem)
    assert (answer.content, answer.completion_tokens) == ("", 0)


def test_no_reply_at_all_is_the_callers_matter() -> None:
    """A connection that fails is told apart from a bad answer."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(fail)) as client:
            await converse(client, "http://router", MODEL)

    with pytest.raises(httpx.ConnectError):
        asyncio.run(run())
