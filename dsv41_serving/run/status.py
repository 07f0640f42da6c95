"""What runs now: the records, checked against the processes, with a few live numbers of each service."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import httpx
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsv41_serving.check.metrics import KV_CAPACITY, KV_USED, QUEUED, RUNNING, MetricsPage, scrape
from dsv41_serving.run.record import Records, ServiceRecord, seconds_since

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

_MILLION = 1_000_000


@dataclass(frozen=True)
class ServiceStatus:
    """One row of `dsv41 status`. None where the service does not say."""

    service: str
    state: str
    phase: str
    pid: int | None
    port: int
    model: str
    uptime_s: float | None
    running: int | None
    queued: int | None
    kv_used_tokens: int | None
    kv_capacity_tokens: int | None
    restarts: int
    problem: str


async def read_status(state_dir: str) -> list[ServiceStatus]:
    """Return the status of every service recorded under `state_dir`, in the order they start."""
    records = sorted(
        Records(state_dir).read_services(), key=lambda r: (r.kind == "router", r.kind != "prefill", r.name)
    )
    # Nothing secret is sent, and the answer is only shown: the certificate of a router does not matter here.
    async with httpx.AsyncClient(timeout=3.0, verify=False) as client:  # noqa: S501
        pages = await asyncio.gather(*(_scrape(client, record) for record in records))
        closed = await asyncio.gather(*(_is_closed(client, record) for record in records))
    return [_row(record, page, closed=shut) for record, page, shut in zip(records, pages, closed, strict=True)]


def as_rows(statuses: Sequence[ServiceStatus]) -> list[dict[str, Any]]:
    """Return the rows for JSON."""
    return [asdict(status) for status in statuses]


def as_table(statuses: Sequence[ServiceStatus]) -> RenderableType:
    """Return the rows as a table; the model stands above it, once when all services agree."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("service", "state", "pid", "port", "uptime", "run + wait", "KV used"):
        words = column in {"service", "state"}
        # On a narrow terminal the state takes more lines; it is never cut.
        table.add_column(
            column,
            justify="left" if words else "right",
            no_wrap=column != "state",
            overflow="fold",
            min_width=8 if words else None,
        )
    for status in statuses:
        style = {"ready": "green", "dead": "red", "failed": "red"}.get(status.state, "yellow")
        table.add_row(
            status.service,
            f"[{style}]{_state(status)}[/{style}]",
            _number(status.pid),
            str(status.port),
            "-" if status.uptime_s is None else duration(status.uptime_s),
            "-" if status.running is None else f"{status.running} + {status.queued or 0}",
            _share(status.kv_used_tokens, status.kv_capacity_tokens),
        )
    models = sorted({status.model for status in statuses})
    return Group(Text(f"model {', '.join(models)}"), table)


def _state(status: ServiceStatus) -> str:
    text = status.state
    if status.state not in {status.phase, "dead", "closed"}:
        text += f": {status.phase}"
    return f"{text}, restarted {status.restarts}x" if status.restarts else text


def list_problems(state_dir: str, statuses: Sequence[ServiceStatus]) -> list[str]:
    """Return one line for what is wrong with the stack as a whole and with each service."""
    stack = Records(state_dir).read_stack()
    lines = [f"stack {stack.state}: {stack.problem}"] if stack is not None and stack.problem else []
    return lines + [f"{status.service}: {status.problem}" for status in statuses if status.problem]


def duration(seconds: float) -> str:
    """Return seconds as people say them: 42 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    whole = int(seconds)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


async def _is_closed(client: httpx.AsyncClient, record: ServiceRecord) -> bool:
    """Return whether a router that is up sends requests away: it was drained, or its workers are unhealthy."""
    if record.kind != "router" or record.state != "ready" or not record.alive:
        return False
    try:
        response = await client.get(f"{record.url}/readiness")
    except httpx.HTTPError:
        return False
    return response.status_code == httpx.codes.SERVICE_UNAVAILABLE


def _row(record: ServiceRecord, page: MetricsPage | None, *, closed: bool = False) -> ServiceStatus:
    gone = record.state in {"starting", "ready", "draining"} and not record.alive
    serving = page is not None and record.kind != "router"
    return ServiceStatus(
        service=record.name,
        state="dead" if gone else "closed" if closed else record.state,
        phase=record.phase,
        pid=record.pid if record.alive else None,
        port=record.port,
        model=record.model,
        uptime_s=seconds_since(record.ready_at) if record.ready_at is not None and record.alive else None,
        # A scheduler first exports these gauges after some steps; until then it has nothing to count.
        running=round(page.total(RUNNING)) if page and serving else None,
        queued=round(page.total(QUEUED)) if page and serving else None,
        kv_used_tokens=_count(page, KV_USED) if serving else None,
        kv_capacity_tokens=_count(page, KV_CAPACITY) if serving else None,
        restarts=record.restarts,
        problem=record.problem
        or ("the process is gone" if gone else "")
        or ("new requests get 503; `dsv41 drain --undo` lets them in" if closed else ""),
    )


async def _scrape(client: httpx.AsyncClient, record: ServiceRecord) -> MetricsPage | None:
    if not record.alive:
        return None
    try:
        return await scrape(client, record.metrics_url)
    except (httpx.HTTPError, ValueError):
        return None


def _count(page: MetricsPage | None, name: str) -> int | None:
    value = page.get(name) if page else None
    return None if value is None else round(value)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _share(used: int | None, capacity: int | None) -> str:
    if used is None or not capacity:
        return "-"
    shown = f"{capacity / 1e6:.1f}M" if capacity >= _MILLION else str(capacity)
    return f"{used / capacity:.1%} of {shown}"
