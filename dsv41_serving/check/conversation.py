"""Hold a short real conversation and judge the body of the answer, not its status code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

PROMPT = "Name the capital of France."
MAX_TOKENS = 24


@dataclass(frozen=True)
class Answer:
    """A judged completion. `problem` is empty when every part of the body is as the contract says."""

    content: str
    prompt_tokens: int
    completion_tokens: int
    problem: str


async def converse(client: httpx.AsyncClient, base_url: str, model: str) -> Answer:
    """Ask one question at `base_url` without thinking and judge the reply.

    Wants HTTP 200, the model name back, content that is not empty, a finish reason, and token counts above zero.
    Raises httpx.HTTPError when there is no HTTP reply at all.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "chat_template_kwargs": {"thinking": False},
    }
    response = await client.post(f"{base_url}/v1/chat/completions", json=body)
    if response.status_code != httpx.codes.OK:
        return _rejected(f"HTTP {response.status_code}: {response.text[:200].strip()}")
    try:
        return judge(response.json(), model)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return _rejected(f"the body is not a chat completion ({type(error).__name__}: {error}): {response.text[:200]}")


def judge(reply: dict[str, Any], model: str) -> Answer:
    """Judge the JSON body of a chat completion. Raises KeyError, IndexError or TypeError when it is none."""
    choice = reply["choices"][0]
    content = choice["message"].get("content") or ""
    usage = reply["usage"]
    problems = []
    if reply["model"] != model:
        problems.append(f"model is '{reply['model']}', not '{model}'")
    if not content.strip():
        problems.append("content is empty")
    if choice["finish_reason"] not in {"stop", "length"}:
        problems.append(f"finish_reason is {choice['finish_reason']!r}")
    if usage["prompt_tokens"] <= 0 or usage["completion_tokens"] <= 0:
        problems.append(f"usage counts no tokens: {usage}")
    return Answer(
        content=content,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        problem="; ".join(problems),
    )


def _rejected(problem: str) -> Answer:
    return Answer(content="", prompt_tokens=0, completion_tokens=0, problem=problem)
