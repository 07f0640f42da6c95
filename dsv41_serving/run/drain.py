"""Wait until an engine has nothing left to do: no running or queued request, no hand-off under way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import httpx

from dsv41_serving.check.metrics import HAND_OFF_QUEUES, QUEUED, RUNNING, MetricsPage, scrape

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Service

POLL_S = 0.25


async def wait_until_idle(service: Service, timeout_s: float, show: Callable[[str], None]) -> str:
    """Poll the engine's own queues until all are empty; return '' then, or what was left after `timeout_s` seconds.

    `show` is told what it waits for. An engine that no longer answers is idle: there is nothing to wait for.
    """
    deadline = time.monotonic() + timeout_s
    async with httpx.AsyncClient(timeout=5.0) as client:
        while True:
            try:
                left = describe_work(await scrape(client, service.metrics_url))
            except (httpx.HTTPError, ValueError):
                return ""
            if not left or time.monotonic() > deadline:
                return left
            show(left)
            await asyncio.sleep(POLL_S)


def describe_work(page: MetricsPage) -> str:
    """Return '2 running, 1 queued, 1 in hand-off', naming only what is not zero."""
    counts = (
        (page.total(RUNNING), "running"),
        (page.total(QUEUED), "queued"),
        (page.total(*HAND_OFF_QUEUES), "in hand-off"),
    )
    return ", ".join(f"{count:.0f} {what}" for count, what in counts if count > 0)
