"""`dsv41 contract check`: find the deployment, run the clauses, say how it went."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.contract.deployment import expect_answer, of_plan, of_url, open_client
from dsv41_serving.contract.suite import Result, run_clauses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41_serving.check.access import Access
    from dsv41_serving.contract.clause import Clause
    from dsv41_serving.plan.model import Plan
    from dsv41_serving.spec.model import Contract


@dataclass(frozen=True)
class Checked:
    """One run of the suite."""

    url: str
    results: tuple[Result, ...]
    seconds: float
    generated_tokens: int


async def check_contract(
    contract: Contract,
    clauses: Sequence[Clause],
    *,
    plan: Plan | None,
    url: str | None,
    access: Access,
    on_result: Callable[[Result], None],
) -> Checked:
    """Judge the router of `plan`, or whatever answers at `url`, by `clauses`. Raises InputError when nothing answers there."""
    start = time.monotonic()
    async with open_client(access) as client:
        deployment = of_plan(plan, client, url) if plan is not None else None
        if deployment is not None and url is None:
            await expect_answer(client, deployment.front.url)
        if deployment is None:
            deployment = await of_url(url or "", client, contract)
        results = await run_clauses(deployment, clauses, on_result)
    return Checked(deployment.front.url, tuple(results), time.monotonic() - start, deployment.generated_tokens)
