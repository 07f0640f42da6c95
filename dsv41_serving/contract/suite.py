"""Run clauses against a deployment: the independent ones side by side, the others one after another."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.contract.clauses import CLAUSES
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41_serving.contract.clause import Clause, Outcome
    from dsv41_serving.contract.deployment import Deployment

SIDE_BY_SIDE = 4


@dataclass(frozen=True)
class Result:
    """One clause as it came out."""

    clause: Clause
    outcome: Outcome
    seconds: float


def choose(names: Sequence[str]) -> tuple[Clause, ...]:
    """Return the clauses called `names`, or all. Raises InputError for an unknown name."""
    known = {clause.name: clause for clause in CLAUSES}
    for name in names:
        if name not in known:
            raise InputError(f"there is no clause '{name}'", remedy=f"use one of: {', '.join(known)}")
    return tuple(known[name] for name in names) if names else CLAUSES


async def run_clauses(
    deployment: Deployment, clauses: Sequence[Clause], on_result: Callable[[Result], None] = lambda _: None
) -> list[Result]:
    """Return the results in the order of `clauses`; `on_result` gets each as it comes."""
    slots = asyncio.Semaphore(SIDE_BY_SIDE)
    results: dict[str, Result] = {}

    async def run(clause: Clause) -> None:
        async with slots:
            start = time.monotonic()
            outcome = await clause.judge(deployment)
            results[clause.name] = Result(clause, outcome, time.monotonic() - start)
            on_result(results[clause.name])

    async with asyncio.TaskGroup() as group:
        for clause in clauses:
            if not clause.alone:
                group.create_task(run(clause))
    for clause in clauses:
        if clause.alone:
            await run(clause)
    return [results[clause.name] for clause in clauses]


def all_kept(results: Sequence[Result]) -> bool:
    """Return whether no clause was missed and at least one was proven."""
    verdicts = [result.outcome.verdict for result in results]
    return "MISS" not in verdicts and "pass" in verdicts
