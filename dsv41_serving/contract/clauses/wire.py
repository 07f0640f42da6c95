"""Between client and engine: nothing is lost on the way, engines agree, a client that leaves frees what it held."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv41_serving.check.metrics import ABORTED, scrape
from dsv41_serving.contract.clause import Outcome, clause, judge, unless
from dsv41_serving.contract.deployment import PLAIN
from dsv41_serving.contract.reply import NoAnswerError, paths, read_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.contract.deployment import Deployment, Server
    from dsv41_serving.contract.reply import Reply

FREED_WITHIN_S = 10.0
# The engine tells what it holds every 15 steps, and a step of a busy machine takes seconds.
HELD_WITHIN_S = 60.0
POLL_S = 0.2
LOGPROB_TOLERANCE = 0.05
STANDARD: dict[str, Any] = {
    "max_tokens": 1,
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 2,
    "seed": 1,
    "stop": ["\n\n"],
    **PLAIN,
}
# Differ from server to server and say nothing about the answer.
IDENTITY = {"id", "created", "metadata"}


@dataclass(frozen=True)
class _Held:
    """What an engine holds: requests it aborted so far, KV tokens in use now."""

    aborted: float
    tokens: int


@clause("disconnect", needs=("answers", "engines"), alone=True)
async def disconnect(deployment: Deployment) -> Outcome:
    """A client that leaves a stream frees its slot and its KV within seconds."""
    engine = _pick(deployment, "decode")
    before = await _hold(deployment, engine)
    async with deployment.open_stream(max_tokens=2000, ignore_eos=True, **PLAIN) as response:
        # Read to the end in a task of its own: lines that nobody holds on to close the connection when they are collected.
        reading = asyncio.create_task(read_stream(response.aiter_lines()))
        try:
            during = await _poll(
                deployment, engine, lambda held: held.tokens > before.tokens or reading.done(), HELD_WITHIN_S
            )
            if during.tokens <= before.tokens and reading.done():
                raise NoAnswerError(f"the stream ended before it could be left: {_describe_end(reading)}")
        finally:
            await _end(reading)

    def freed(held: _Held) -> bool:
        # Other clients may have come meanwhile: then less than before they left has to do.
        return held.aborted > before.aborted and held.tokens <= max(before.tokens, during.tokens - 1)

    left = time.monotonic()
    after = await _poll(deployment, engine, freed, FREED_WITHIN_S)
    return judge(
        f"aborted and its KV free within {FREED_WITHIN_S:.0f} s",
        f"{engine.name}: {after.aborted - before.aborted:.0f} aborted; {before.tokens}, {during.tokens}, {after.tokens} KV tokens "
        f"before, during and {time.monotonic() - left:.1f} s after",
        unless(during.tokens > before.tokens, "the stream was never seen to hold KV"),
        unless(after.aborted > before.aborted, "it was not aborted"),
        unless(freed(after), "its KV is still held"),
    )


@clause("router-keeps-fields", needs=("router", "engines"), alone=True)
async def router_keeps_fields(deployment: Deployment) -> Outcome:
    """What comes through the router is what the engine itself returns: no field lost, the same first token."""
    expected = "the fields and the first token of the engine's own answer"
    routed = await deployment.chat(**STANDARD)
    # The decode server forms the answer of a pair; asked alone its text means nothing, its fields do. The first token is prefill's.
    shaper = _pick(deployment, "decode")
    first = _pick(deployment, "prefill")
    shape = await deployment.ask(shaper, **STANDARD, **shaper.alone)
    told = await deployment.ask(first, **STANDARD, **first.alone)
    lost = _fields(shape) - _fields(routed)
    apart = _logprob_distance(routed, told)
    return judge(
        expected,
        f"{len(_fields(routed))} fields ({shaper.name} {len(_fields(shape))}), first token {routed.first.content!r} "
        f"({first.name} {told.first.content!r}), log probabilities {apart:.3f} apart, prompt {routed.prompt_tokens} tokens ({first.name} {told.prompt_tokens})",
        unless(not lost, f"lost: {', '.join(sorted(lost))}"),
        unless(routed.prompt_tokens == told.prompt_tokens, "another prompt"),
        unless(apart <= LOGPROB_TOLERANCE, "another first token"),
    )


@clause("engines-agree", needs=("engines",))
async def engines_agree(deployment: Deployment) -> Outcome:
    """Every engine has the table of this plan in force."""
    contract = deployment.contract.model_dump(mode="json")
    problems, told = [], []
    for engine in deployment.engines:
        try:
            report = await deployment.get_json("/contract", engine)
        except NoAnswerError as error:
            return Outcome("MISS" if deployment.own else "skip", "the table of the plan", f"{engine.name}: {error}")
        differing = {
            key: report["contract"].get(key) for key in contract if report["contract"].get(key) != contract[key]
        }
        problems += [
            f"{engine.name} has {key} = {value!r}, the plan {contract[key]!r}" for key, value in differing.items()
        ]
        told.append({key: value for key, value in report["in_force"].items() if key != "role"})
        problems += _in_force(engine, report["in_force"], contract)
    different = sorted({key for one in told for key in one if any(other.get(key) != one[key] for other in told)})
    return judge(
        "the table of the plan, the same on every engine",
        f"{', '.join(engine.name for engine in deployment.engines)}: {len(contract)} values",
        *problems,
        unless(not different, f"the engines differ in {', '.join(different)}"),
    )


def _in_force(engine: Server, in_force: dict[str, Any], contract: dict[str, Any]) -> list[str]:
    """Return where what the engine runs with is not the table: parsers, name, thinking, sampling."""
    keys = ("served_model_name", "reasoning_parser", "tool_call_parser", "thinking")
    pairs = [(key, in_force.get(key), contract[key]) for key in keys]
    sampling = in_force.get("sampling") or {}
    pairs += [
        (key, sampling.get(key), contract[key]) for key in ("temperature", "top_p") if contract[key] != "checkpoint"
    ]
    return [
        f"{engine.name} runs with {key} = {found!r}, the plan says {wanted!r}"
        for key, found, wanted in pairs
        if found != wanted
    ]


def _describe_end(reading: asyncio.Task[Reply]) -> str:
    """Say how a stream that is over ended."""
    if error := reading.exception():
        return str(error) or type(error).__name__
    reply = reading.result()
    return f"{reply.chunks} chunks, {reply.first}" if reply.choices else f"{reply.chunks} chunks, none with a choice"


async def _end(reading: asyncio.Task[Reply]) -> None:
    """Stop to read, which closes the connection."""
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled():
        reading.exception()


def _pick(deployment: Deployment, kind: str) -> Server:
    return next((e for e in deployment.engines if e.kind == kind), deployment.engines[0])


def _fields(reply: Reply) -> set[str]:
    return {path for path in paths(reply.body) if path.split(".")[0] not in IDENTITY}


def _logprob_distance(one: Reply, other: Reply) -> float:
    tops: list[dict[str, float]] = [
        {e["token"]: e["logprob"] for e in reply.first.logprobs[0]["top_logprobs"]} for reply in (one, other)
    ]
    if tops[0].keys() != tops[1].keys():
        return float("inf")
    return max(abs(tops[0][token] - tops[1][token]) for token in tops[0])


async def _poll(deployment: Deployment, engine: Server, reached: Callable[[_Held], bool], within_s: float) -> _Held:
    """Return what `engine` holds as soon as `reached`, or the last that was seen within `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        held = await _hold(deployment, engine)
        if reached(held) or time.monotonic() > deadline:
            return held
        await asyncio.sleep(POLL_S)


async def _hold(deployment: Deployment, engine: Server) -> _Held:
    page = await scrape(deployment.client, engine.metrics_url)
    # The page's gauges follow every 40 steps, this one every 15.
    loads = (await deployment.get_json("/v1/loads", engine))["loads"]
    return _Held(page.total(ABORTED), sum(load["num_used_tokens"] for load in loads))


CLAUSES = (disconnect, router_keeps_fields, engines_agree)
