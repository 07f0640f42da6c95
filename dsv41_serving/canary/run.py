"""`dsv41 canary`: one conversation, or one every few seconds, each stored for the exporter."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from dsv41_serving.canary.conversation import STEP_DEADLINE_S, hold_conversation
from dsv41_serving.canary.result import CanaryResults, CanaryRun
from dsv41_serving.check.access import open_client
from dsv41_serving.contract.deployment import of_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.check.access import Access
    from dsv41_serving.plan.model import Plan


async def run_canary(
    plan: Plan, *, access: Access, every_s: float | None, on_run: Callable[[CanaryRun], None]
) -> CanaryRun:
    """Hold the conversation with the router of `plan` once, or every `every_s` seconds; return the last run."""
    results = CanaryResults(plan.state_dir)
    while True:
        start = time.monotonic()
        async with open_client(access, STEP_DEADLINE_S) as client:
            deployment = of_plan(plan, client)
            if deployment is None:
                raise RuntimeError("a plan always has a router")
            run = results.add(await hold_conversation(deployment))
        on_run(run)
        if every_s is None:
            return run
        await asyncio.sleep(max(0.0, every_s - (time.monotonic() - start)))
