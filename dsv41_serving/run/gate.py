"""Run the gate by hand, against what the records say is running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.check.gate import check_engine, check_router
from dsv41_serving.check.result import Finding
from dsv41_serving.errors import InputError
from dsv41_serving.run.record import Records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.facts.model import Gpu
    from dsv41_serving.plan.model import Plan


async def check_running(plan: Plan, role: str | None, gpus: Sequence[Gpu]) -> list[Finding]:
    """Return the findings of service `role`, or of every service of `plan`. Raises InputError for an unknown role."""
    names = [service.name for service in plan.services]  # of this host
    if role is not None and role not in names:
        raise InputError(
            f"this plan has no service '{role}'", where=f"shape {plan.shape}", remedy=f"use one of: {', '.join(names)}"
        )
    records = {record.name: record for record in Records(plan.state_dir).read_services(plan)}
    findings: list[Finding] = []
    for service in plan.services:
        if role not in (None, service.name):
            continue
        record = records.get(service.name)
        if record is None or record.pid is None or record.start_ticks is None:
            findings.append(
                Finding(
                    service=service.name,
                    check="identity",
                    passed=False,
                    seen="it was not started on this node",
                    remedy="`dsv41 up`",
                )
            )
        elif service.is_engine:
            findings += await check_engine(plan, service, record.pid, record.start_ticks, gpus)
        else:
            findings += await check_router(plan, service, record.pid, record.start_ticks)
    return findings
