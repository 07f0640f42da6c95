"""Let an engine answer prompts of the lengths of its plan before it is ready: what it compiles for them, no client waits for.

SGLang 0.5.23 compiles kernels at the first batch of a kind, inside the request. Half of a pair answers by itself, as in SGLang's own
warm-up, which sends a handful of tokens.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.check.access import find_engine_access, open_client
from dsv41_serving.contract.deployment import Server
from dsv41_serving.errors import GateError
from dsv41_serving.spec.model import WARM_UP_ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Service

AT_ONCE = 8
"""The shortest prompt is also sent so many times at once."""
_FIRST_ID, _IDS = 1_000, 19_000
"""Ordinary tokens of every vocabulary this project serves."""
_FLUSH_S = 30.0


async def warm_up(service: Service, say: Callable[[str], None]) -> None:
    """Send the engine `service` a prompt of each length in `warm_up`, one after the other, then several at once, then forget them.

    No two begin alike, so that none is found in the prefix cache. `say` hears what is under way. Raises GateError when a prompt fails
    or takes longer than `start_timeout_s`, or when the engine does not answer at all.
    """
    if not service.warm_up:
        return
    alone = Server(service.name, service.kind, service.url).alone

    async def post(path: str, body: dict[str, Any], what: str) -> httpx.Response:
        try:
            return await client.post(f"{service.url}{path}", json=body)
        except httpx.HTTPError as error:
            raise _failed(service, f"{what} failed while warming up ({type(error).__name__})") from None

    async def send(length: int, number: int) -> None:
        body: dict[str, Any] = {
            "input_ids": [_FIRST_ID + (7_919 * (at + 1) + number) % _IDS for at in range(length)],
            "sampling_params": {"temperature": 0, "max_new_tokens": WARM_UP_ANSWER, "ignore_eos": True},
            **({**alone, "bootstrap_room": number} if alone else {}),
        }
        answer = await post("/generate", body, f"a prompt of {length} tokens")
        if answer.status_code != httpx.codes.OK:
            said = answer.text.strip()[:200]
            raise _failed(service, f"a prompt of {length} tokens failed while warming up ({answer.status_code} {said})")

    async with open_client(find_engine_access(service), service.start_timeout_s) as client:
        for number, length in enumerate(service.warm_up):
            say(f"a prompt of {length:,} tokens")
            await send(length, number)
        shortest = min(service.warm_up)
        say(f"{AT_ONCE} prompts of {shortest:,} tokens at once")
        await asyncio.gather(*(send(shortest, len(service.warm_up) + number) for number in range(AT_ONCE)))
        deadline = time.monotonic() + _FLUSH_S
        # It refuses while a request is inside. One of a client may be, where the router of another host serves already; then the
        # prompts stay cached, which does no harm.
        while (await post("/flush_cache", {}, "emptying the cache")).status_code != httpx.codes.OK:
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.2)


def _failed(service: Service, problem: str) -> GateError:
    return GateError(problem, where=service.name, remedy="read its log; [engine] warm_up_tokens = [] starts without")
