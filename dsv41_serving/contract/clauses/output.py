"""The answer: formats, ends, counts, and a stream that says what the whole body says."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.clause import Outcome, clause, judge, unless
from dsv41_serving.contract.deployment import PLAIN
from dsv41_serving.contract.reply import equal_texts, is_openai_error, read_reply

if TYPE_CHECKING:
    from dsv41_serving.contract.deployment import Deployment
    from dsv41_serving.contract.reply import Reply

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}
LENGTH = 24
CHOICES_LIMIT_S = 30.0
LONG_PROMPT_WORDS = 600  # more than two KV pages of 256 tokens
ATTEMPTS = 3
"""Greedy texts of two runs may part where two tokens tie and other requests share the batch; a fault shows every time."""


@clause("json-schema")
async def json_schema(deployment: Deployment) -> Outcome:
    """response_format json_schema gives JSON that matches the schema, and nothing around it."""
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    choice = (await deployment.chat(response_format=wanted, max_tokens=64, temperature=0, **PLAIN)).first
    try:
        value = json.loads(choice.content)
    except ValueError:
        value = None
    fits = (
        isinstance(value, dict)
        and value.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
        and value["city"] in {"Paris", "Rome"}
        and isinstance(value["large"], bool)
    )
    return judge("an object with city and large", choice, unless(fits, "content does not match the schema"))


@clause("stop", alone=True)
async def stop(deployment: Deployment) -> Outcome:
    """A stop string ends the answer before it, with finish_reason stop, streamed or not."""
    text = (await _plain(deployment)).first.content
    words = text.split()
    if len(words) < 3:  # noqa: PLR2004 - something must stand before and after the stop
        return Outcome("MISS", "an answer of some words to stop in", repr(text))
    word = words[len(words) // 2]
    wanted = text[: text.index(word)]
    whole = (await _plain(deployment, stop=[word])).first
    streamed = (await deployment.stream(max_tokens=LENGTH, temperature=0, stop=word, **PLAIN)).first
    return judge(
        f"{wanted!r} (stop)",
        f"whole {whole}; stream {streamed}",
        *(
            unless(
                choice.content.rstrip() == wanted.rstrip() and choice.finish_reason == "stop",
                f"{where}: not stopped there",
            )
            for where, choice in (("whole", whole), ("stream", streamed))
        ),
    )


@clause("logprobs")
async def logprobs(deployment: Deployment) -> Outcome:
    """logprobs lists every token with the alternatives asked for, the most likely first."""  # noqa: D403 - a field's name
    reply = await deployment.chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=2, **PLAIN)
    entries = reply.first.logprobs
    spelt = "".join(entry["token"] for entry in entries)
    ranked = all(
        len(entry["top_logprobs"]) == 2  # noqa: PLR2004 - as asked
        and entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]
        and entry["logprob"] <= 0
        for entry in entries
    )
    return judge(
        "one entry per token, two alternatives each, spelling the content",
        f"{len(entries)} entries for {reply.completion_tokens} tokens: {spelt!r}",
        unless(entries and len(entries) == reply.completion_tokens, "not one entry per token"),
        unless(spelt.strip().startswith(reply.first.content.strip()), f"they do not spell {reply.first.content!r}"),
        unless(ranked, "alternatives are missing or out of order"),
    )


@clause("usage")
async def usage(deployment: Deployment) -> Outcome:
    """Usage counts prompt and answer; a stream ends with it when asked, and when not asked as the table says."""
    fields: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, **PLAIN}
    whole = await deployment.chat(**fields)
    asked = await deployment.stream(stream_options={"include_usage": True}, **fields)
    silent = await deployment.stream(**fields)
    counts = [(r.prompt_tokens, r.completion_tokens, r.usage.get("total_tokens")) for r in (whole, asked)]
    prompt = whole.prompt_tokens
    by_default = deployment.contract.stream_usage
    return judge(
        f"prompt + 4 = total in both; {'a' if by_default else 'no'} usage chunk unasked",
        f"whole {counts[0]}, stream {counts[1]}, unasked {'usage' if silent.usage else 'none'}",
        unless(prompt > 0, "no prompt tokens"),
        *(
            unless(count == (prompt, 4, prompt + 4), f"{where} does not add up")
            for where, count in zip(("whole", "stream"), counts, strict=True)
        ),
        unless(bool(silent.usage) is by_default, "the unasked stream is not as the table says"),
    )


@clause("cached-tokens", alone=True)
async def cached_tokens(deployment: Deployment) -> Outcome:
    """A prompt sent again is found in the cache, and usage says how much of it."""
    text = " ".join([uuid.uuid4().hex, *(f"word{i % 7}" for i in range(LONG_PROMPT_WORDS))])
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **PLAIN}
    first = await deployment.chat(**fields)
    again = await deployment.chat(**fields)
    if not deployment.contract.cache_report:
        return judge(
            "no report: contract.cache_report is off",
            again.cached_tokens,
            unless(again.cached_tokens is None, "a report"),
        )
    return judge(
        "more than half of the prompt the second time, less the first time",
        f"{first.cached_tokens} then {again.cached_tokens} of {again.prompt_tokens} tokens",
        unless(again.cached_tokens is not None, "usage does not say"),
        unless((again.cached_tokens or 0) > again.prompt_tokens / 2, "not found again"),
        unless((first.cached_tokens or 0) < first.prompt_tokens / 2, "found before it was sent"),
    )


@clause("choices")
async def choices(deployment: Deployment) -> Outcome:
    """n=2 gives two choices or a clear 4xx, whole and streamed; it never hangs."""
    expected = f"two choices or a 4xx, within {CHOICES_LIMIT_S:.0f} s"
    body = deployment.body(n=2, max_tokens=3, **PLAIN)
    try:
        async with asyncio.timeout(CHOICES_LIMIT_S):
            response = await deployment.post("/v1/chat/completions", body)
            if response.is_client_error:
                return judge(
                    expected,
                    f"{response.status_code}: {response.text[:120]}",
                    unless(is_openai_error(response.json()), "the refusal has no reason"),
                )
            whole = read_reply(response)
            streamed = await deployment.stream(n=2, max_tokens=3, **PLAIN)
    except TimeoutError:
        return Outcome("MISS", expected, "it hangs")
    return judge(
        expected,
        f"{len(whole.choices)} choices whole, {len(streamed.choices)} streamed",
        *(unless(len(reply.choices) == 2, "not two") for reply in (whole, streamed)),  # noqa: PLR2004 - as asked
        *(unless(c.finish_reason, "a choice without an end") for reply in (whole, streamed) for c in reply.choices),
    )


@clause("stream-equals-whole", alone=True)
async def stream_equals_whole(deployment: Deployment) -> Outcome:
    """Under temperature 0 a stream says what the whole body says: reasoning, answer, end."""
    fields: dict[str, Any] = {"max_tokens": LENGTH, "temperature": 0}
    for _ in range(ATTEMPTS):
        whole = await deployment.chat(**fields)
        streamed = await deployment.stream(**fields)
        if equal_texts(whole.choices, streamed.choices) and streamed.done:
            return judge("the same text", whole.first)
    return judge(
        "the same text",
        f"whole {whole.first}; stream {streamed.first}",
        unless(streamed.done, "no [DONE]"),
        "they differ",
    )


async def _plain(deployment: Deployment, **fields: Any) -> Reply:
    return await deployment.chat(max_tokens=LENGTH, temperature=0, **fields, **PLAIN)


CLAUSES = (json_schema, stop, logprobs, usage, cached_tokens, choices, stream_equals_whole)
