"""What came back: a chat completion, whole or put together from its chunks, read without trusting its shape."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import httpx

THINK_TAGS = ("<think>", "</think>")
TOOL_MARKUP = "DSML"
_SHOWN = 60


class NoAnswerError(Exception):
    """There is no completion to look at: an error status, or a body of another shape. The text says what came."""


@dataclass(frozen=True)
class Call:
    """One tool call: the arguments as the client gets them, a JSON text."""

    id: str
    name: str
    arguments: str

    def parse(self) -> object:
        """Return the arguments as a value, or None when they are not JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return None


@dataclass(frozen=True)
class Choice:
    """One of the answers of a completion."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]
    finish_reason: str
    logprobs: tuple[dict[str, Any], ...] = ()
    """One entry per token: token, logprob, top_logprobs."""

    @property
    def leaks(self) -> list[str]:
        """Think tags and tool markup that a client should not see."""
        texts = {"content": self.content, "reasoning": self.reasoning}
        return [
            f"{mark} in {name}" for name, text in texts.items() for mark in (*THINK_TAGS, TOOL_MARKUP) if mark in text
        ]

    def __str__(self) -> str:
        """Return the choice in one short line."""
        parts = [f"reasoning {shorten(self.reasoning)}"] if self.reasoning else []
        if self.calls:
            parts.append("calls " + ", ".join(f"{call.name}({shorten(call.arguments)})" for call in self.calls))
        if self.content or not parts:
            parts.append(f"content {shorten(self.content)}")
        return f"{', '.join(parts)} ({self.finish_reason or 'no finish reason'})"


@dataclass(frozen=True)
class Reply:
    """A completion. For a stream `body` is empty and the rest is put together from the chunks."""

    choices: tuple[Choice, ...]
    models: frozenset[str]
    """Every model name in the body, or in any chunk."""
    usage: dict[str, Any]
    body: dict[str, Any] = field(default_factory=dict)
    chunks: int = 0
    done: bool = True
    """Whether a stream ended with [DONE]."""

    @property
    def first(self) -> Choice:
        """The first choice."""
        if not self.choices:
            raise NoAnswerError("the completion has no choices")
        return self.choices[0]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, 0 when usage is silent."""
        return _count(self.usage, "prompt_tokens")

    @property
    def completion_tokens(self) -> int:
        """Generated tokens, 0 when usage is silent."""
        return _count(self.usage, "completion_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the cache; None when usage does not say."""
        details = self.usage.get("prompt_tokens_details")
        return _count(details, "cached_tokens") if isinstance(details, dict) and "cached_tokens" in details else None


def shorten(text: str) -> str:
    """Return `text` quoted, cut to a length that fits a line."""
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")


def read_reply(response: httpx.Response) -> Reply:
    """Read a whole completion. Raises NoAnswerError."""
    if response.is_error:
        raise NoAnswerError(f"HTTP {response.status_code}: {' '.join(response.text.split())[:200]}")
    try:
        body = response.json()
        choices = [_read_choice(choice, choice["message"]) for choice in body["choices"]]
        return Reply(
            choices=tuple(choices), models=frozenset({body["model"]}), usage=body.get("usage") or {}, body=body
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NoAnswerError(
            f"not a chat completion ({type(error).__name__}: {error}): {response.text[:120]}"
        ) from error


async def read_stream(lines: AsyncIterator[str]) -> Reply:
    """Put a stream of server-sent events together. Raises NoAnswerError for a chunk that is none."""
    drafts: dict[int, _Draft] = {}
    models: set[str] = set()
    usage: dict[str, Any] = {}
    chunks, done = 0, False
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
            continue
        try:
            chunk = json.loads(data)
            models.add(chunk["model"])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                drafts.setdefault(choice["index"], _Draft()).add(choice)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise NoAnswerError(f"not a chunk ({type(error).__name__}: {error}): {data[:160]}") from error
        chunks += 1
    choices = tuple(drafts[index].finish() for index in sorted(drafts))
    return Reply(choices=choices, models=frozenset(models), usage=usage, chunks=chunks, done=done)


class _Draft:
    """A choice while its chunks arrive."""

    def __init__(self) -> None:
        self.texts = {"content": "", "reasoning_content": ""}
        self.calls: list[dict[str, str]] = []
        self.finish_reason = ""
        self.logprobs: list[dict[str, Any]] = []

    def add(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        for name in self.texts:
            self.texts[name] += delta.get(name) or ""
        for piece in delta.get("tool_calls") or []:
            if piece["index"] == len(self.calls):
                self.calls.append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
            self.calls[piece["index"]]["arguments"] += piece["function"].get("arguments") or ""
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.logprobs += (choice.get("logprobs") or {}).get("content") or []

    def finish(self) -> Choice:
        return Choice(
            content=self.texts["content"],
            reasoning=self.texts["reasoning_content"],
            calls=tuple(Call(**call) for call in self.calls),
            finish_reason=self.finish_reason,
            logprobs=tuple(self.logprobs),
        )


def _read_choice(choice: dict[str, Any], message: dict[str, Any]) -> Choice:
    calls = [
        Call(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    return Choice(
        content=message.get("content") or "",
        reasoning=message.get("reasoning_content") or "",
        calls=tuple(calls),
        finish_reason=choice.get("finish_reason") or "",
        logprobs=tuple((choice.get("logprobs") or {}).get("content") or ()),
    )


def _count(values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    return value if isinstance(value, int) else 0


def paths(value: object, prefix: str = "") -> set[str]:
    """Return the dotted paths of every key in nested JSON; all members of a list share one path."""
    if isinstance(value, dict):
        found: set[str] = set()
        for key, inner in value.items():
            found |= {f"{prefix}{key}"} | paths(inner, f"{prefix}{key}.")
        return found
    if isinstance(value, list):
        return set[str]().union(*(paths(item, prefix) for item in value)) if value else set()
    return set()


def is_openai_error(body: object) -> bool:
    """Return whether `body` is an error as OpenAI's clients read it: an object `error` with a message and a type."""
    if not isinstance(body, dict) or not isinstance(body.get("error"), dict):
        return False
    error: dict[str, Any] = body["error"]
    return all(isinstance(error.get(key), str) and error[key] for key in ("message", "type"))


def equal_texts(one: Sequence[Choice], other: Sequence[Choice]) -> bool:
    """Return whether two replies say the same: content, reasoning, calls (ids apart) and how they ended."""

    def essence(choices: Sequence[Choice]) -> list[tuple[object, ...]]:
        return [
            (c.content, c.reasoning, tuple((call.name, call.arguments) for call in c.calls), c.finish_reason)
            for c in choices
        ]

    return essence(one) == essence(other)
