"""The gate: what must be true of a service before it may be called ready.

An engine passes when its port is the process we started, it reports the contract's model and holds the contract of the plan,
it runs a forward pass, and on a GPU its memory is in use. The router passes when all engines hold the same contract and a real
conversation through it used both: their own counters moved, the hand-off carried bytes, and over no slower lane than was proven.
"Ready" in a log is a claim; these are independent observations.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from dsv41_serving.check.access import find_access, find_engine_access, open_client
from dsv41_serving.check.contract import check_contract
from dsv41_serving.check.conversation import PROMPT, converse
from dsv41_serving.check.handoff import check_lane
from dsv41_serving.check.identity import check_identity
from dsv41_serving.check.metrics import (
    GENERATED_TOKENS,
    HANDED_OVER_MIB,
    PROMPT_TOKENS,
    TRANSFER_FAILURES,
    MetricsPage,
    scrape,
)
from dsv41_serving.check.placement import check_placement
from dsv41_serving.check.result import Finding
from dsv41_serving.run.session import session_members

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from dsv41_serving.facts.model import Gpu
    from dsv41_serving.plan.model import Plan, Service

TIMEOUT_S = 60.0


async def check_engine(
    plan: Plan, service: Service, pid: int, start_ticks: int, gpus: Sequence[Gpu] = ()
) -> list[Finding]:
    """Run the gate of one engine, whose main process is `pid`, started at `start_ticks`. Stops at the first failure.

    Raises InputError when the engine asks for a key that cannot be read.
    """
    findings = [check_identity(service, pid, start_ticks)]
    async with open_client(find_engine_access(service), TIMEOUT_S) as client:
        for probe in (_model, _contract, _forward):
            if findings[-1].passed:
                findings.append(await _guard(service, probe.__name__.lstrip("_"), probe(client, plan, service)))
    if findings[-1].passed and service.placement.numa_node is not None:
        # The supervisor made the engine's main process the leader of a session that holds all of its processes.
        findings.append(await asyncio.to_thread(check_placement, service, session_members(pid)))
    if findings[-1].passed and service.placement.gpus:
        findings.append(_gpu_memory(service, gpus))
    return findings


async def check_router(plan: Plan, service: Service, pid: int, start_ticks: int) -> list[Finding]:
    """Run the gate of the router, whose process is `pid`, started at `start_ticks`. Stops at the first failure.

    Sends one conversation through it, with the key where it asks for one, and compares each engine's counters before and
    after. Raises InputError when that key cannot be read.
    """
    findings = [check_identity(service, pid, start_ticks)]
    if not findings[-1].passed:
        return findings
    async with open_client(find_access(plan), TIMEOUT_S) as client:
        for probe in (_workers, _model, _contract):
            findings.append(await _guard(service, probe.__name__.lstrip("_"), probe(client, plan, service)))
            if not findings[-1].passed:
                return findings
        try:
            before = {engine.name: await scrape(client, engine.metrics_url) for engine in plan.workers}
            answer = await converse(client, service.url, plan.served_model_name)
            after = {engine.name: await scrape(client, engine.metrics_url) for engine in plan.workers}
        except (httpx.HTTPError, ValueError) as error:
            findings.append(
                _failed(service, "conversation", f"{type(error).__name__}: {error}", "read the logs of the services")
            )
            return findings
        if answer.problem:
            findings.append(_failed(service, "conversation", answer.problem, "read the logs of the services"))
            return findings
        seen = f"'{PROMPT}' -> {answer.completion_tokens} tokens: {answer.content.strip()[:60]!r}"
        findings.append(Finding(service=service.name, check="conversation", passed=True, seen=seen))
        findings += compare_counters(plan, before, after)
    if findings[-1].passed:
        findings += await check_lane(plan)
    return findings


def compare_counters(plan: Plan, before: dict[str, MetricsPage], after: dict[str, MetricsPage]) -> list[Finding]:
    """Return, for the engines together by role, whether their own counters moved between two scrapes."""
    findings = []
    wanted = {
        "prefill": ((PROMPT_TOKENS, "tokens"), (HANDED_OVER_MIB, "MiB")),
        "decode": ((GENERATED_TOKENS, "tokens"),),
    }
    wanted["aggregated"] = ((GENERATED_TOKENS, "tokens"),)
    for kind, counters in wanted.items():
        engines = [engine.name for engine in plan.workers if engine.kind == kind]
        if not engines:
            continue
        for counter, unit in counters:
            moved = sum(after[name].total(counter) - before[name].total(counter) for name in engines)
            check = "hand-off" if counter == HANDED_OVER_MIB else "used"
            findings.append(
                Finding(
                    service="+".join(engines),
                    check=check,
                    passed=moved > 0,
                    seen=f"{counter} moved by {moved:.4g} {unit}",
                    remedy="the answer did not come through this engine: look for another server on its port",
                )
            )
    failures = sum(
        after[e.name].total(TRANSFER_FAILURES) - before[e.name].total(TRANSFER_FAILURES) for e in plan.workers
    )
    if failures:
        findings.append(_failed(plan.router, "hand-off", f"{failures:.0f} transfers failed", "read the prefill log"))
    return findings


async def _workers(client: httpx.AsyncClient, _plan: Plan, service: Service) -> Finding:
    response = await client.get(f"{service.url}/readiness")
    passed = response.status_code == httpx.codes.OK
    return Finding(
        service=service.name,
        check="workers",
        passed=passed,
        seen="every role has a healthy worker"
        if passed
        else f"/readiness says {response.status_code}: {response.text[:120]}",
        remedy="restart the router: it never retries a worker whose registration failed",
    )


async def _model(client: httpx.AsyncClient, plan: Plan, service: Service) -> Finding:
    response = await client.get(f"{service.url}/v1/models")
    response.raise_for_status()
    names = [entry["id"] for entry in response.json()["data"]]
    return Finding(
        service=service.name,
        check="model",
        passed=names == [plan.served_model_name],
        seen=f"/v1/models says {names}",
        remedy=f"expected ['{plan.served_model_name}']: restart this service, the router caches the old name",
    )


async def _contract(client: httpx.AsyncClient, plan: Plan, service: Service) -> Finding:
    """An engine is compared with the plan, all of them with each other once the router is there."""
    return await check_contract(client, plan, service, (service,) if service.is_engine else plan.workers)


async def _forward(client: httpx.AsyncClient, _plan: Plan, service: Service) -> Finding:
    response = await client.get(f"{service.url}/health_generate")
    return Finding(
        service=service.name,
        check="forward",
        passed=response.status_code == httpx.codes.OK,
        seen=f"/health_generate says {response.status_code}",
        remedy="read the engine's log",
    )


def _gpu_memory(service: Service, gpus: Sequence[Gpu]) -> Finding:
    """The weights must lie on the GPUs of the plan: 5 % of a GPU is more than any context alone takes."""
    used = {
        gpu.index: gpu.memory_used_bytes / gpu.memory_total_bytes for gpu in gpus if gpu.index in service.placement.gpus
    }
    empty = [index for index in service.placement.gpus if used.get(index, 0.0) < 0.05]  # noqa: PLR2004
    return Finding(
        service=service.name,
        check="gpu memory",
        passed=not empty,
        seen=", ".join(f"GPU {index} {share:.0%}" for index, share in sorted(used.items())),
        remedy=f"GPU {empty[0] if empty else ''} holds no weights: the engine runs elsewhere",
    )


async def _guard(service: Service, check: str, probe: Awaitable[Finding]) -> Finding:
    """Await a probe; no reply, or one that is not JSON of the expected shape, is a failed check."""
    try:
        return await probe
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return _failed(
            service, check.replace("_", " "), f"{type(error).__name__}: {error}", "read the log of the service"
        )


def _failed(service: Service, check: str, seen: str, remedy: str) -> Finding:
    return Finding(service=service.name, check=check, passed=False, seen=seen, remedy=remedy)
