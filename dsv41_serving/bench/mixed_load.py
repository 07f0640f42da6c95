"""A small mixed load on a router: what makes every serving metric of the embedded stack move within half a minute."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterable

AT_ONCE = 6
TIMEOUT_S = 300.0
LONG_PROMPT_WORDS = 1200
CANCEL_AFTER_CHUNKS = 4
_PLAIN = {"chat_template_kwargs": {"thinking": False}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def run_mixed_load(
    url: str, model: str, rounds: int, *, first: int = 0, headers: dict[str, str] | None = None
) -> int:
    """Send `rounds` rounds of eight kinds of request to the router at `url`, AT_ONCE at a time; return how many.

    Rounds are numbered from `first`: prompts of a number that was sent before may still be cached.

    Answers are not judged, and requests that fail or are refused are part of it. Raises httpx.ConnectError when nobody answers.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=headers or {}) as client:
        requests = [each for number in range(first, first + rounds) for each in _requests(model, number)]

        async def send(body: dict[str, Any], cancel_after: int) -> None:
            async with slots:
                if cancel_after:
                    await _cancel(client, body, cancel_after)
                else:
                    with suppress(httpx.ReadError, httpx.RemoteProtocolError, httpx.ReadTimeout):
                        await client.post("/v1/chat/completions", json=body)

        async with asyncio.TaskGroup() as group:
            for body, cancel_after in requests:
                group.create_task(send(body, cancel_after))
    return len(requests)


def _requests(model: str, number: int) -> Iterable[tuple[dict[str, Any], int]]:
    """Yield (body, chunks after which the client goes away, 0: never) of one round."""
    words = " ".join(f"{(number * 7919 + index * 104729) % 9973}" for index in range(LONG_PROMPT_WORDS // 4))
    yield _chat(model, "What is the capital of France?", 40, **_PLAIN), 0
    yield _chat(model, "What is the capital of France?", 40, **_PLAIN), 0
    yield _chat(model, f"Tell me something about the number {number}.", 120), 0
    yield _chat(model, "Count from one to thirty.", 80, stream=True, **_PLAIN), 0
    yield _chat(model, "Write a long story about the sea.", 400, stream=True, **_PLAIN), CANCEL_AFTER_CHUNKS
    yield _chat(model, f"Which of these numbers is the largest? {words}", 8, stream=True, **_PLAIN), 0
    required = {"type": "function", "function": {"name": "get_weather"}}
    yield _chat(model, "What is the weather in Paris?", 60, tools=[_TOOL], tool_choice=required, **_PLAIN), 0
    yield _chat("no-such-model", "Hello.", 8, **_PLAIN), 0


def _chat(model: str, text: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **fields}


async def _cancel(client: httpx.AsyncClient, body: dict[str, Any], after: int) -> None:
    seen = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            seen += line.startswith("data:")
            if seen >= after:
                return
