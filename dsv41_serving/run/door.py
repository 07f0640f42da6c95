"""Close the router to new requests, and open it again, while it keeps running.

A router without a whole pair answers 503 at once and says so at /readiness, and the requests it has passed on go on: seen with
sglang-router 0.3.2 and smg 1.13.0, and held by `tests/engine`. So the door is its list of workers.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.check.access import find_access, open_client
from dsv41_serving.errors import GateError

if TYPE_CHECKING:
    from dsv41_serving.check.access import Access
    from dsv41_serving.plan.model import Plan, Service

_TIMEOUT_S = 10.0
# It removes and registers in the background; a registration probes the worker first.
_PATIENCE_S = 30.0
_POLL_S = 0.1


async def close_door(plan: Plan) -> bool:
    """Take its workers from the router; return whether there was a router to close.

    When it returns, the router sends new requests away with 503, smg in front of replicas with 404. Raises GateError when it
    will not.
    """
    try:
        async with open_client(find_access(plan), _TIMEOUT_S) as client:
            workers = await _list_workers(client, plan)
            half = [worker for worker in workers if worker["worker_type"] == "decode"]
            # smg answers 404, as for an unknown model, when nobody at all is left; half a pair is 503 with both routers.
            for worker in half or workers:
                response = await client.delete(f"{plan.router.url}/workers/{worker['id']}")
                _expect(response, plan.router, {httpx.codes.ACCEPTED, httpx.codes.OK, httpx.codes.NOT_FOUND})
            deadline = time.monotonic() + _PATIENCE_S
            while await _is_ready(client, plan):
                await _pause(deadline, "keeps its workers")
    except httpx.ConnectError:
        return False
    except httpx.HTTPError as error:
        raise GateError(f"the door cannot be closed ({type(error).__name__})", where="router") from None
    return True


async def open_door(plan: Plan) -> None:
    """Give the router its workers back; when it returns, requests are served. Raises GateError when they are not."""
    missing = {worker.url: worker for worker in plan.workers}
    access = find_access(plan)
    try:
        async with open_client(access, _TIMEOUT_S) as client:
            deadline = time.monotonic() + _PATIENCE_S
            while not await _is_ready(client, plan):
                # smg still lists a worker for five seconds after its removal: one that is missing now was not a moment ago.
                known = {worker["url"] for worker in await _list_workers(client, plan)}
                for url in [url for url in missing if url not in known]:
                    response = await client.post(
                        f"{plan.router.url}/workers", json=_as_worker(missing.pop(url), access)
                    )
                    _expect(response, plan.router, {httpx.codes.ACCEPTED, httpx.codes.OK})
                await _pause(deadline, "has no healthy worker")
    except httpx.HTTPError as error:
        raise GateError(
            f"the door cannot be opened ({type(error).__name__})", where="router", remedy="`dsv41 restart`"
        ) from None


async def _list_workers(client: httpx.AsyncClient, plan: Plan) -> list[dict[str, Any]]:
    response = await client.get(f"{plan.router.url}/workers")
    _expect(response, plan.router, {httpx.codes.OK})
    workers: list[dict[str, Any]] = response.json()["workers"]
    return workers


async def _is_ready(client: httpx.AsyncClient, plan: Plan) -> bool:
    return (await client.get(f"{plan.router.url}/readiness")).status_code == httpx.codes.OK


async def _pause(deadline: float, problem: str) -> None:
    """Wait for the next look. Raises GateError with `problem` after `deadline`."""
    if time.monotonic() > deadline:
        raise GateError(f"the router {problem}", where="router", remedy="`dsv41 restart` starts it anew")
    await asyncio.sleep(_POLL_S)


def _as_worker(engine: Service, access: Access) -> dict[str, Any]:
    kind = "regular" if engine.kind == "aggregated" else engine.kind
    bootstrap = {"bootstrap_port": engine.ports["bootstrap"]} if engine.kind == "prefill" else {}
    key = {"api_key": access.key} if engine.url in access.workers else {}
    return {"url": engine.url, "worker_type": kind, **bootstrap, **key}


def _expect(response: httpx.Response, router: Service, codes: set[int]) -> None:
    if response.status_code not in codes:
        raise GateError(
            f"{response.request.method} {response.request.url.path} says {response.status_code}", where=router.name
        )
