"""Hold the canary's conversation through the router: think, go away in mid-sentence, call a tool, answer from its result.

Under TOKEN_LIMIT generated tokens in all. Every step judges what came back, never the status code alone; the first step that
fails does not end the run, because which steps fail says where to look.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.canary.result import CanaryRun, Step
from dsv41_serving.check.metrics import ABORTED, scrape
from dsv41_serving.contract.deployment import PLAIN
from dsv41_serving.contract.reply import NoAnswerError, Reply, read_stream, shorten

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dsv41_serving.contract.deployment import Deployment

TOKEN_LIMIT = 200
STEP_DEADLINE_S = 60.0
THINKING_TOKENS = 56
CANCEL_AFTER_CHUNKS = 3
CANCEL_TOKENS = 400
TOOL_TOKENS = 64
ANSWER_TOKENS = 24
_ABORT_LOOKS, _ABORT_PAUSE_S = 40, 0.25
_QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
_CITIES = ("Paris", "Rome")
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": list(_CITIES)}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_NAMED = {"type": "function", "function": {"name": "get_weather"}}


async def hold_conversation(deployment: Deployment) -> CanaryRun:
    """Return one run against `deployment`, not stored."""
    start = time.monotonic()
    canary = _Canary(deployment)
    for name, step in canary.steps().items():
        await canary.take(name, step)
    return CanaryRun(
        finished_at=time.time(),
        seconds=time.monotonic() - start,
        first_token_s=canary.first_token_s,
        generated_tokens=deployment.generated_tokens,
        steps=tuple(canary.taken),
    )


class _Canary:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.first_token_s: float | None = None
        self.taken: list[Step] = []

    def steps(self) -> dict[str, Callable[[], Awaitable[tuple[str, list[str]]]]]:
        """Return the steps in order; each returns what it saw and what is wrong with it."""
        return {
            "thinking": self._think,
            "cancel": self._cancel,
            "tool_call": self._call_a_tool,
            "answer": self._answer,
        }

    async def take(self, name: str, step: Callable[[], Awaitable[tuple[str, list[str]]]]) -> None:
        """Run one step within its deadline and remember how it went."""
        try:
            async with asyncio.timeout(STEP_DEADLINE_S):
                seen, problems = await step()
        except NoAnswerError as error:
            seen, problems = "no completion", [str(error)]
        except httpx.HTTPError as error:
            seen, problems = "no reply", [f"{type(error).__name__} {error}".strip()]
        except TimeoutError:
            seen, problems = "no end", [f"took longer than {STEP_DEADLINE_S:.0f} s"]
        self.taken.append(Step(name=name, seen=seen, problem="; ".join(filter(None, problems))))

    async def _think(self) -> tuple[str, list[str]]:
        """Ask with the defaults of the contract, as a stream: the reasoning comes first, in its own field."""
        start = time.monotonic()

        async def timed(lines: AsyncIterator[str]) -> AsyncIterator[str]:
            async for line in lines:
                if self.first_token_s is None and _carries_text(line):
                    self.first_token_s = time.monotonic() - start
                yield line

        usage = {"stream_options": {"include_usage": True}}
        async with self._deployment.open_stream(max_tokens=THINKING_TOKENS, temperature=0, **usage) as response:
            reply = await read_stream(timed(response.aiter_lines()))
        self._deployment.generated_tokens += reply.completion_tokens or reply.chunks
        wanted = self._deployment.contract.thinking
        choice = reply.first
        return str(choice), [
            *self._faults(reply),
            "" if bool(choice.reasoning) == wanted else f"reasoning {'missing' if wanted else 'present'}",
            "" if choice.reasoning or choice.content else "empty",
            "" if reply.done else "the stream has no end",
        ]

    async def _cancel(self) -> tuple[str, list[str]]:
        """Leave a stream after a few chunks; the engines must notice, or abandoned answers run to their end."""
        before = await self._aborted()
        chunks = 0
        story = [{"role": "user", "content": "Write a long story about the sea."}]
        # Without an end of its own, so that there is something to leave.
        fields: dict[str, Any] = {"messages": story, "ignore_eos": True}
        async with self._deployment.open_stream(max_tokens=CANCEL_TOKENS, **fields, **PLAIN) as response:
            async for line in response.aiter_lines():
                chunks += _carries_text(line)
                if chunks >= CANCEL_AFTER_CHUNKS:
                    break
        self._deployment.generated_tokens += chunks
        for _ in range(_ABORT_LOOKS):
            after = await self._aborted()
            if after > before:
                break
            await asyncio.sleep(_ABORT_PAUSE_S)
        seen = f"left after {chunks} chunks, {ABORTED} moved by {after - before:.0f}"
        return seen, ["" if after > before else "the engines did not notice"]

    async def _call_a_tool(self) -> tuple[str, list[str]]:
        """Want one call whose arguments are JSON of the tool's schema."""
        reply = await self._deployment.chat(
            messages=[_QUESTION], tools=[_WEATHER], tool_choice=_NAMED, max_tokens=TOOL_TOKENS, temperature=0, **PLAIN
        )
        calls = reply.first.calls
        arguments = calls[0].parse() if len(calls) == 1 else None
        valid = isinstance(arguments, dict) and arguments.get("city") in _CITIES and len(arguments) == 1
        return str(reply.first), [
            *self._faults(reply),
            "" if valid else "no call with arguments of the schema",
        ]

    async def _answer(self) -> tuple[str, list[str]]:
        """Answer in the same conversation from the tool's result, with text."""
        call = {"id": "call_0", "type": "function"}
        call_made = {**call, "function": {"name": "get_weather", "arguments": json.dumps({"city": _CITIES[0]})}}
        messages = [
            _QUESTION,
            {"role": "assistant", "content": "", "tool_calls": [call_made]},
            {"role": "tool", "tool_call_id": "call_0", "content": json.dumps({"sky": "clear", "celsius": 21})},
        ]
        reply = await self._deployment.chat(
            messages=messages, tools=[_WEATHER], tool_choice="none", max_tokens=ANSWER_TOKENS, temperature=0, **PLAIN
        )
        content = reply.first.content.strip()
        return shorten(content), [*self._faults(reply), "" if content else "empty content"]

    def _faults(self, reply: Reply) -> list[str]:
        name = self._deployment.contract.served_model_name
        others = sorted(reply.models - {name})
        return [f"model is {', '.join(others)}, not {name}" if others else "", *reply.first.leaks]

    async def _aborted(self) -> float:
        """Return how many requests the engines have given up; an engine that does not answer counts none."""
        total = 0.0
        for engine in self._deployment.engines:
            try:
                total += (await scrape(self._deployment.client, engine.metrics_url)).total(ABORTED)
            except (httpx.HTTPError, ValueError):
                continue
        return total


def _carries_text(line: str) -> bool:
    """Return whether a line of an event stream brings text, reasoning or a call: the first chunk brings only the role."""
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return False
    try:
        delta = json.loads(line.removeprefix("data:"))["choices"][0]["delta"]
    except (ValueError, LookupError, TypeError):
        return False
    return any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))
