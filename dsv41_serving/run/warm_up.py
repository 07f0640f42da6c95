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

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Service

AT_ONCE = 8
"""The shortest prompt is also sent so many times at once."""
ANSWER_TOKENS = 4
_FIRST_ID, _IDS = 1_000, 19_000
"""Ordinary tokens of every vocabulary this project serves."""
_FLUSH_S = 30.0


async def warm_up(service: Service, say: Callable[[str], None]) -> None:
    """Send the engine `service` a prompt of each length in `warm_up`, one after the other, then several at once, then forget them.

    `say` hears what is under way. Raises GateError when a prompt fails or takes longer than `start_timeout_s`, or when the prefix
    cache cannot be emptied.
    """
    if not service.warm_up:
        return
    alone = Server(service.name, service.kind, service.url).alone

    async def send(length: int, number: int = 0) -> None:
        body: dict[str, Any] = {
            "input_ids": [_FIRST_ID + (7_919 * (at + 1) + number) % _IDS for at in range(length)],
            "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True},
            **({**alone, "bootstrap_room": number} if alone else {}),
        }
        try:
            answer = await client.post(f"{service.url}/generate", json=body)
        except httpx.HTTPError as error:
            raise _failed(
                service, f"a prompt of {length} tokens failed while warming up ({type(error).__name__})"
            ) from None
        if answer.status_code != httpx.codes.OK:
            said = answer.text.strip()[:200]
            raise _failed(service, f"a prompt of {length} tokens failed while warming up ({answer.status_code} {said})")

    async with open_client(find_engine_access(service), service.start_timeout_s) as client:
        for length in service.warm_up:
            say(f"a prompt of {length:,} tokens")
            await send(length)
        shortest = min(service.warm_up)
        say(f"{AT_ONCE} prompts of {shortest:,} tokens at once")
        await asyncio.gather(*(send(shortest, number) for number in range(1, AT_ONCE + 1)))
        deadline = time.monotonic() + _FLUSH_S
        # It refuses while a request is on its way out.
        while (await client.post(f"{service.url}/flush_cache")).status_code != httpx.codes.OK:
            if time.monotonic() > deadline:
                raise _failed(
                    service, f"the prefix cache could not be emptied within {_FLUSH_S:.0f} s after warming up"
                )
            await asyncio.sleep(0.2)


def _failed(service: Service, problem: str) -> GateError:
    return GateError(problem, where=service.name, remedy="read its log; [engine] warm_up_tokens = [] starts without")
