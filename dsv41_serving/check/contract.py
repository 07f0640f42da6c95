"""Ask the engines which contract they hold requests to, and compare it with the plan and with each other.

The plan gives all engines the same flags and environment; this looks at what they made of it. An engine in which the
plug-in did not load has no `/contract` and fails here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.check.result import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsv41_serving.plan.model import Plan, Service

PATH = "/contract"
_REMEDY = "start all engines again, from one plan"


async def check_contract(
    client: httpx.AsyncClient, plan: Plan, service: Service, engines: Sequence[Service]
) -> Finding:
    """Return whether all of `engines` hold the contract of `plan`; the finding is one of `service`.

    Raises httpx.HTTPError or ValueError when an engine does not answer with a report.
    """
    reports: dict[str, Any] = {}
    for engine in engines:
        response = await client.get(f"{engine.url}{PATH}")
        if response.status_code != httpx.codes.OK:
            seen = f"{engine.name}: {PATH} says {response.status_code}: the contract's plug-in is not loaded"
            return _finding(service, passed=False, seen=seen)
        reports[engine.name] = response.json()
    problems = judge_reports(plan, reports)
    seen = problems[0] if problems else f"{' and '.join(reports)}: {_first(reports)['fingerprint'][:12]}"
    return _finding(service, passed=not problems, seen=seen)


def judge_reports(plan: Plan, reports: Mapping[str, Any]) -> list[str]:
    """Return every difference of an engine's report from the plan, then from the first engine's report."""
    table = plan.contract.model_dump()
    expected = _expect(plan)
    problems = []
    for name, report in reports.items():
        problems += _differences(name, report["contract"], table, "the plan says")
        in_force = {**report["in_force"], **{f"sampling.{k}": v for k, v in report["in_force"]["sampling"].items()}}
        problems += _differences(name, {key: in_force.get(key) for key in expected}, expected, "the plan says")
    first_name = next(iter(reports))
    first = reports[first_name]
    for name, report in reports.items():
        for part in ("in_force", "versions"):
            problems += _differences(name, report[part], first[part], f"{first_name} says")
    return problems


def _expect(plan: Plan) -> dict[str, Any]:
    """Return what SGLang must have made of the table; sampling that is left to the checkpoint is not in it."""
    contract = plan.contract
    expected: dict[str, Any] = {
        "served_model_name": contract.served_model_name,
        "reasoning_parser": contract.reasoning_parser,
        "tool_call_parser": contract.tool_call_parser,
        "thinking": contract.thinking,
        "reasoning_effort": str(contract.reasoning_effort),
        "strict_thinking": contract.max_thinking_tokens > 0,
        "cache_report": contract.cache_report,
    }
    sampling = {"sampling.temperature": contract.temperature, "sampling.top_p": contract.top_p}
    return expected | {key: value for key, value in sampling.items() if value != "checkpoint"}


def _differences(name: str, found: Mapping[str, Any], wanted: Mapping[str, Any], who: str) -> list[str]:
    keys = {**wanted, **found}
    return [
        f"{name}: {key} is {found.get(key)!r}, {who} {wanted.get(key)!r}"
        for key in keys
        if found.get(key) != wanted.get(key)
    ]


def _first(reports: Mapping[str, Any]) -> Any:
    return next(iter(reports.values()))


def _finding(service: Service, *, passed: bool, seen: str) -> Finding:
    return Finding(service=service.name, check="contract", passed=passed, seen=seen, remedy=_REMEDY)
