"""A clause: one thing the contract promises, as a function that looks at a deployment and says what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import httpx

from dsv41_serving.contract.reply import NoAnswerError

if TYPE_CHECKING:
    from dsv41_serving.contract.deployment import Deployment

Verdict = Literal["pass", "MISS", "skip"]
Need = Literal["answers", "engines", "router"]
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """What a clause expected and saw."""

    verdict: Verdict
    expected: str
    seen: str


Check = Callable[["Deployment"], Awaitable[Outcome]]


@dataclass(frozen=True)
class Clause:
    """One promise. `statement` says it in a sentence."""

    name: str
    statement: str
    check: Check
    needs: tuple[Need, ...]
    """`answers`: the server completes chats by itself; `engines`: SGLang servers may be asked directly; `router`: it is one."""
    alone: bool
    """Whether no other clause may run meanwhile: the check compares texts, counters or times."""

    async def judge(self, deployment: Deployment) -> Outcome:
        """Run the check within its deadline; a request that fails is a miss."""
        for need in self.needs:
            if lacking := _lacks(deployment, need):
                return Outcome("skip", self.statement, lacking)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self.check(deployment)
        except NoAnswerError as error:
            return Outcome("MISS", self.statement, str(error))
        except httpx.HTTPError as error:
            return Outcome("MISS", self.statement, f"no reply ({type(error).__name__}: {error})".replace(": )", ")"))
        except TimeoutError:
            return Outcome("MISS", self.statement, f"no end within {DEADLINE_S:.0f} s")


def clause(name: str, *, needs: tuple[Need, ...] = ("answers",), alone: bool = False) -> Callable[[Check], Clause]:
    """Make a clause of a check; the first line of its docstring is the statement."""

    def make(check: Check) -> Clause:
        statement = (check.__doc__ or "").strip().split("\n")[0].removesuffix(".")
        return Clause(name, statement, check, needs, alone)

    return make


def judge(expected: str, seen: object, *problems: str) -> Outcome:
    """Return a pass, or a miss when any of `problems` is not empty; then what was seen ends with them."""
    found = [problem for problem in problems if problem]
    return Outcome("MISS" if found else "pass", expected, "; ".join([str(seen), *found]))


def unless(holds: object, problem: str) -> str:
    """Return `problem` when something does not hold, else ''."""
    return "" if holds else problem


def cannot(deployment: Deployment, expected: str, reason: str) -> Outcome:
    """Return what it means that the deployment lacks an ability a check needs: a fault of our own, a skip elsewhere."""
    return Outcome("MISS" if deployment.own else "skip", expected, reason)


def _lacks(deployment: Deployment, need: Need) -> str:
    if need == "answers" and not deployment.answers:
        return f"a {deployment.front.kind} server does not answer alone; ask the router"
    if need == "router" and deployment.front.kind != "router":
        return "this is not a router"
    if need == "engines" and not deployment.engines:
        return "no SGLang server behind this address is known; run it against the plan, or with the --url of an engine"
    return ""
