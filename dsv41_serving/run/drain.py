"""Drain: let no new request in, and wait until the engines have nothing left to do, no hand-off under way either."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from dsv41_serving.check.access import find_access, find_engine_access, open_client
from dsv41_serving.check.metrics import HAND_OFF_QUEUES, HTTP_ACTIVE, QUEUED, RUNNING, MetricsPage, scrape
from dsv41_serving.errors import GateError
from dsv41_serving.run.door import close_door
from dsv41_serving.run.record import Records

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Plan, Service

POLL_S = 0.25
# How long an engine has to free the memory of requests that were cancelled.
CANCEL_S = 10.0


@dataclass(frozen=True)
class Drained:
    """How a drain ended."""

    closed: bool
    """Whether a router was there to be closed."""
    cancelled: str
    """What was still running at the bound and was cancelled, such as '2 running'; '' when everything finished."""
    left: str
    """What the engines still hold all the same; '' when nothing."""
    seconds: float


def refuse_starting(plan: Plan) -> None:
    """Raise GateError while a service of `plan` starts: its router would open by itself after the drain."""
    starting = [
        f"{record.name}: {record.phase}"
        for record in Records(plan.state_dir).read_services(plan)
        if record.supervised and record.state in {"waiting", "starting"}
    ]
    if starting:
        raise GateError(
            f"still starting, {'; '.join(starting)}",
            where=f"node {plan.node}",
            remedy="drain it once `dsv41 status` says ready, or stop it: systemctl stop dsv41.target, `dsv41 down`",
        )


async def drain_node(plan: Plan, timeout_s: float, show: Callable[[str], None]) -> Drained:
    """Close the router to new requests, wait `timeout_s` for those inside to finish, and cancel what is left then.

    Engines and router stay up: `door.open_door` lets requests in again. Raises GateError when the router cannot be closed.
    """
    start = time.monotonic()
    closed = await close_door(plan)
    cancelled = await wait_until_all_idle(plan, timeout_s, show)
    left = ""
    if cancelled:
        show(f"cancelling {cancelled}")
        async with open_client(find_access(plan), 5.0) as client:
            # Decode first: prefill then finds nobody to send to, instead of decode waiting for what never comes.
            for engine in sorted(plan.workers, key=lambda engine: engine.kind):
                try:
                    await client.post(f"{engine.url}/abort_request", json={"abort_all": True})
                except httpx.HTTPError:
                    continue  # an engine that is gone has nothing to cancel
        left = await wait_until_all_idle(plan, CANCEL_S, show)
    return Drained(closed, cancelled, left, time.monotonic() - start)


async def wait_until_all_idle(plan: Plan, timeout_s: float, show: Callable[[str], None]) -> str:
    """Wait until every engine is idle at once; return '' then, or what was left after `timeout_s`, by engine."""
    deadline = time.monotonic() + timeout_s
    idle_before = False
    while True:
        left = await _work_by_engine(plan)
        # A request on its way from one engine to the other shows in neither for a moment: twice nothing is nothing.
        if not left and idle_before:
            return ""
        idle_before = not left
        text = "; ".join(f"{name}: {work}" for name, work in left.items())
        if left and time.monotonic() > deadline:
            return text
        if text:
            show(text)
        await asyncio.sleep(POLL_S)


async def _work_by_engine(plan: Plan) -> dict[str, str]:
    left = {}
    async with open_client(find_access(plan), 5.0) as client:
        for engine in plan.workers:
            try:
                work = await _read_work(client, engine)
            except (httpx.HTTPError, ValueError):
                continue  # nobody to wait for
            if work:
                left[engine.name] = work
    return left


async def wait_until_idle(service: Service, timeout_s: float, show: Callable[[str], None]) -> str:
    """Poll the engine's own queues until all are empty; return '' then, or what was left after `timeout_s` seconds.

    `show` is told what it waits for. An engine that no longer answers is idle: there is nothing to wait for.
    """
    deadline = time.monotonic() + timeout_s
    async with open_client(find_engine_access(service), 5.0) as client:
        while True:
            try:
                left = await _read_work(client, service)
            except (httpx.HTTPError, ValueError):
                return ""
            if not left or time.monotonic() > deadline:
                return left
            show(left)
            await asyncio.sleep(POLL_S)


async def _read_work(client: httpx.AsyncClient, engine: Service) -> str:
    """Ask the engine's scheduler and its page. Raises httpx.HTTPError or ValueError when it does not answer."""
    page = await scrape(client, engine.metrics_url)
    response = await client.get(f"{engine.url}/v1/loads", params={"include": "core"})
    answered = response.is_success and "json" in response.headers.get("content-type", "")
    ranks = response.json()["loads"] if answered else []
    return describe_work(page, sum(rank["num_running_reqs"] + rank["num_waiting_reqs"] for rank in ranks))


def describe_work(page: MetricsPage, scheduled: int = 0) -> str:
    """Return '2 running, 1 queued, 1 in hand-off', naming only what is not zero.

    The gauges behind these follow every few dozen steps: for seconds they do not know a request that has just begun. So when they
    name nothing, what counts is the scheduler's own word of this step, `scheduled`, and what the HTTP server has not answered yet.
    """
    counts = (
        (page.total(RUNNING), "running"),
        (page.total(QUEUED), "queued"),
        (page.total(*HAND_OFF_QUEUES), "in hand-off"),
    )
    named = ", ".join(f"{count:.0f} {what}" for count, what in counts if count > 0)
    begun = max(scheduled, page.posts(HTTP_ACTIVE))
    return named or (f"{begun:.0f} just begun" if begun else "")
