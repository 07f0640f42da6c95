"""Many hand-offs on a running pair, with clients that leave and engines that die, and what became of them.

Only for engines with `disaggregation-enable-kv-checksum`: decode then compares the KV it got with what prefill sent, for every
request. Answers are compared as well, with those the same prompts got alone; a batch may round otherwise, so a different answer
without a failed checksum is no proof of corruption.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.bench.handoff import read_page
from dsv41_serving.check.metrics import HAND_OFF_QUEUES, KV_USED, RETRACTED, TRANSFER_FAILURES, MetricsPage
from dsv41_serving.errors import GateError, InputError
from dsv41_serving.run.record import Records

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.bench.scenario import Words
    from dsv41_serving.plan.model import Plan

AT_ONCE = 8
_UNDER_WAY_S = 0.05
ANSWER_TOKENS = 6
LENGTHS = (1, 2, 7, 16, 33, 64, 90, 128, 200, 256, 300, 400, 512, 700, 900, 1_200)
KINDS = {"answer": 70, "cancel": 15, "leave": 10, "long answer": 5}
"""Per cent: a whole answer; a client that goes within 0.2 s; one that goes after the first token; an answer of 64 tokens."""
KILLED = ("decode", "prefill")
"""In turn."""
CHECKSUM = "--disaggregation-enable-kv-checksum"
MISMATCH = re.compile("KV checksum mismatch")
_COUNTED = re.compile(r"dsv41_handoff_(transfers|fallbacks)_total\{(\w+)\}")
_SETTLE_S = 60.0
_RECOVERY_S = 300.0
_TIMEOUT_S = 180.0


@dataclass
class Outcome:
    """What was counted."""

    requests: dict[str, int] = field(default_factory=dict)
    """By kind and end: `answer: same`, `answer: other text`, `answer: cut off` by a kill, `answer: error`, `cancel: gone`, ..."""
    handoffs: dict[str, int] = field(default_factory=dict)
    """Finished ones by path, as the engines count them; those of an engine that was killed are counted until shortly before."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    """By the engine that was killed."""
    failed_transfers: float = 0
    retracted: float = 0
    checksum_mismatches: int = 0
    slots_busy_at_end: float = 0
    kv_used_at_end: float = 0
    queued_at_end: float = 0
    seconds: float = 0.0

    @staticmethod
    def add(counts: dict[str, int], name: str, by: int = 1) -> None:
        """Count `name` `by` times."""
        counts[name] = counts.get(name, 0) + by

    @property
    def sound(self) -> bool:
        """Whether nothing was corrupted, nothing was left behind, and no request failed but by a kill."""
        left = self.slots_busy_at_end + self.kv_used_at_end + self.queued_at_end
        failed = sum(count for end, count in self.requests.items() if end.endswith(": error"))
        return self.checksum_mismatches == failed == left == 0 and sum(self.handoffs.values()) > 0


async def run_soak(
    plan: Plan,
    state_dir: str,
    words: Words,
    *,
    handoffs: int,
    restarts: int,
    longest: int,
    client: httpx.AsyncClient,
    say: Callable[[str], None],
) -> Outcome:
    """Keep AT_ONCE requests of at most `longest` tokens going until `handoffs` were sent, killing an engine `restarts` times.

    Raises InputError when the engines compare no checksums or there are too few requests to fill every slot before each kill,
    GateError when the pair does not come back or an engine does not answer at the end.
    """
    least = AT_ONCE * (restarts + 1)
    if handoffs < least:
        raise InputError(
            f"{handoffs} requests are too few to kill an engine {restarts} times while {AT_ONCE} run",
            where="--handoffs",
            remedy=f"send {least} or more, or fewer --restarts",
        )
    if not all(CHECKSUM in engine.argv for engine in plan.engines):
        raise InputError(
            "the engines do not compare the KV they hand over",
            where=f"node {plan.node}",
            remedy=f"start them with --set engine.args.{CHECKSUM.removeprefix('--')}=true",
        )
    soak = _Soak(plan, state_dir, client, say)
    prompts = {length: words.write(length, f"soak/{length}") for length in LENGTHS if length <= longest}
    expected = await soak.learn(prompts)
    await soak.count()
    soak.outcome = Outcome()  # what the engines had counted before is not this soak's
    began = time.monotonic()
    await soak.load(prompts, expected, handoffs, restarts)
    await soak.settle()
    await soak.count()
    soak.outcome.seconds = round(time.monotonic() - began, 1)
    soak.outcome.checksum_mismatches = count_mismatches(state_dir)
    return soak.outcome


def place_kills(handoffs: int, restarts: int) -> dict[int, str]:
    """Return before which request which engine is killed: evenly spread, neither at the beginning nor at the end."""
    return {handoffs * (number + 1) // (restarts + 1): KILLED[number % len(KILLED)] for number in range(restarts)}


def count_mismatches(state_dir: str) -> int:
    """Return how many hand-offs decode's logs call corrupt; those of engines that were replaced are kept beside."""
    logs = Path(state_dir, "log").glob("decode*.log*")
    return sum(len(MISMATCH.findall(path.read_text(encoding="utf-8", errors="replace"))) for path in logs)


def describe(outcome: Outcome) -> list[str]:
    """Return the counts as lines."""
    lines = []
    for name, value in asdict(outcome).items():
        shown = (
            ", ".join(f"{key} {count:g}" for key, count in sorted(value.items()))
            if isinstance(value, dict)
            else f"{value:g}"
        )
        lines.append(f"{name.replace('_', ' '):<22}{shown or 'none'}")
    return lines


class _Soak:
    def __init__(self, plan: Plan, state_dir: str, client: httpx.AsyncClient, say: Callable[[str], None]) -> None:
        self.outcome = Outcome()
        self._plan = plan
        self._records = Records(state_dir)
        self._client = client
        self._say = say
        self._kills = 0
        self._seen: dict[tuple[str, int | None], dict[str, float]] = {}

    async def learn(self, prompts: dict[int, str]) -> dict[int, str]:
        """Return length -> the answer of a prompt that is asked alone, where asking twice gives the same."""
        learned = {}
        for length, prompt in prompts.items():
            first, second = [await self._ask(prompt, ANSWER_TOKENS) for _ in range(2)]
            if first == second:
                learned[length] = first
        self._say(f"{len(learned)} of {len(prompts)} answers are the same when asked twice")
        return learned

    async def load(self, prompts: dict[int, str], expected: dict[int, str], count: int, restarts: int) -> None:
        """Send `count` requests, AT_ONCE at a time; engines are killed while requests run."""
        choice = random.Random(count)  # noqa: S311 - reproducible on purpose
        slots = asyncio.Semaphore(AT_ONCE)
        kills = place_kills(count, restarts)

        async def one(kind: str, length: int, delay_s: float) -> None:
            killed = self._kills
            try:
                end = await self._meet(kind, prompts[length], length, expected, delay_s)
            except (httpx.HTTPError, ValueError, KeyError):
                end = "error"
            if end == "error" and self._kills > killed:
                end = "cut off"
            Outcome.add(self.outcome.requests, f"{kind}: {end}")
            slots.release()
            if (sent := sum(self.outcome.requests.values())) % 250 == 0:
                self._say(f"{sent} requests")

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await slots.acquire()
                # Short requests end while engines are counted, so the kill waits until all slots are taken again.
                if number in kills:
                    await self.count()
                if (role := kills.get(number - AT_ONCE + 1)) is not None:
                    await asyncio.sleep(_UNDER_WAY_S)
                    await self._kill(role)
                kind = choice.choices([*KINDS], [*KINDS.values()])[0]
                group.create_task(one(kind, choice.choice([*prompts]), choice.uniform(0, 0.2)))

    async def _kill(self, role: str) -> None:
        """Kill the engine of `role` while requests run, and wait until the pair serves again."""
        name = next(engine.name for engine in self._plan.engines if engine.kind == role)
        pid = {record.name: record.pid for record in self._records.read_services()}.get(name)
        if pid is None:
            raise GateError(f"{name} does not run", where=self._plan.node, remedy="start the deployment")
        self._kills += 1
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _RECOVERY_S
        while time.monotonic() < deadline:
            await asyncio.sleep(1)
            stack = self._records.read_stack()
            now = {record.name: record.pid for record in self._records.read_services()}
            if stack is not None and stack.state == "ready" and now.get(name) not in {None, pid}:
                Outcome.add(self.outcome.restarts, role)
                self._say(f"{name} was killed and serves again")
                return
        raise GateError("the pair did not come back", where=name, remedy="read the logs")

    async def count(self) -> None:
        """Add what the engines have counted since the last look; one that started anew has another pid and counts from 0."""
        pids = {record.name: record.pid for record in self._records.read_services()}
        for engine in self._plan.engines:
            text = await self._fetch(engine.metrics_url)
            all_of_it = MetricsPage(text)
            now = {name: value for name, value in read_page(text).items() if _COUNTED.fullmatch(name)}
            now |= {name: all_of_it.total(name) for name in (TRANSFER_FAILURES, RETRACTED)}
            before = self._seen.get((engine.name, pids.get(engine.name)), {})
            for name, value in now.items():
                gained = value - before.get(name, 0.0)
                if match := _COUNTED.fullmatch(name):
                    counter = self.outcome.handoffs if match[1] == "transfers" else self.outcome.fallbacks
                    Outcome.add(counter, match[2], int(gained))
                elif name == RETRACTED:
                    self.outcome.retracted += gained
                else:
                    self.outcome.failed_transfers += gained
            self._seen[engine.name, pids.get(engine.name)] = now

    async def settle(self) -> None:
        """Wait until nothing is under way, and note what is left."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            pages = [MetricsPage(await self._fetch(engine.metrics_url)) for engine in self._plan.engines]
            left = [
                sum(page.total(*names) for page in pages)
                for names in ((KV_USED,), HAND_OFF_QUEUES, ("dsv41_handoff_slots_busy",))
            ]
            if not any(left) or time.monotonic() > deadline:
                self.outcome.kv_used_at_end, self.outcome.queued_at_end, self.outcome.slots_busy_at_end = left
                return
            await asyncio.sleep(1)

    async def _meet(self, kind: str, prompt: str, length: int, expected: dict[int, str], delay_s: float) -> str:
        """Send one request of a kind and return how it ended."""
        if kind == "cancel":
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ask(prompt, ANSWER_TOKENS), delay_s)
                return "answered before"
            return "gone"
        if kind == "leave":
            async with self._client.stream(
                "POST", self._url, json={**self._body(prompt, 64), "stream": True}
            ) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        return "gone" if "error" not in json.loads(line[6:]) else "error"
            return "error"
        if kind == "long answer":
            await self._ask(prompt, 64)
            return "answered"
        answer = await self._ask(prompt, ANSWER_TOKENS)
        return {None: "not compared", answer: "same"}.get(expected.get(length), "other text")

    async def _ask(self, prompt: str, tokens: int) -> str:
        response = await self._client.post(self._url, json=self._body(prompt, tokens), timeout=_TIMEOUT_S)
        response.raise_for_status()
        return str(response.json()["choices"][0]["text"])

    async def _fetch(self, url: str) -> str:
        try:
            return (await self._client.get(url)).raise_for_status().text
        except httpx.HTTPError as error:
            raise GateError(f"does not answer ({type(error).__name__})", where=url, remedy="read the logs") from None

    @property
    def _url(self) -> str:
        return f"{self._plan.router.url}/v1/completions"

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        return {
            "model": self._plan.served_model_name,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
