"""`dsv41 status`: records against processes, with live numbers."""

from __future__ import annotations

import asyncio
import io
import os
import time
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dsv41_serving.run.record import Records, own_start_ticks
from dsv41_serving.run.status import ServiceStatus, as_rows, as_table, duration, read_status
from dsv41_serving.run.supervise import Supervisor
from tests.unit.run.fake_plan import fake_plan
from tests.unit.run.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dsv41_serving.run.record import ServiceRecord

    Make = Callable[..., ServiceRecord]


def read(state_dir: Path) -> list[ServiceStatus]:
    """Return the status of what is recorded."""
    return asyncio.run(read_status(str(state_dir)))


def test_nothing_runs_before_the_first_start(tmp_path: Path) -> None:
    """No rows."""
    assert read(tmp_path) == []


def test_a_running_engine_says_what_it_does(tmp_path: Path) -> None:
    """Queue and KV memory come from the engine itself, at this moment."""
    plan = fake_plan(tmp_path, {"prefill": {"running": 3}})
    records = Records(tmp_path)

    async def live() -> list[ServiceStatus]:
        supervisor = Supervisor(
            plan, plan.service("prefill"), output=io.BytesIO(), on_change=records.write_service, pin=False
        )
        try:
            await asyncio.wait_for(supervisor.start(), PATIENCE_S)
            return await read_status(str(tmp_path))
        finally:
            await supervisor.stop(drain=False)

    (status,) = asyncio.run(live())
    assert (status.service, status.state, status.phase, status.model) == (
        "prefill",
        "ready",
        "ready",
        "deepseek-v4.1-flash",
    )
    assert status.port == plan.service("prefill").port
    assert status.pid is not None
    assert status.uptime_s is not None
    assert (status.running, status.queued) == (3, 0)
    assert (status.kv_used_tokens, status.kv_capacity_tokens) == (21, 700)
    (stopped,) = read(tmp_path)
    assert (stopped.state, stopped.pid, stopped.uptime_s, stopped.running) == ("stopped", None, None, None)


def test_services_are_listed_as_they_start(tmp_path: Path, make_record: Make) -> None:
    """Prefill, the other engines, the router."""
    records = Records(tmp_path)
    for name, kind in (("router", "router"), ("beta", "decode"), ("alpha", "decode"), ("first", "prefill")):
        records.write_service(make_record(name=name, kind=kind))
    assert [status.service for status in read(tmp_path)] == ["first", "alpha", "beta", "router"]


@pytest.mark.parametrize("state", ["starting", "ready", "draining"])
def test_a_record_whose_process_is_gone_is_dead(tmp_path: Path, make_record: Make, state: str) -> None:
    """Whatever it says of itself."""
    Records(tmp_path).write_service(
        make_record(state=state, phase=state, pid=os.getpid(), start_ticks=own_start_ticks() + 1, ready_at=time.time())
    )
    (status,) = read(tmp_path)
    assert (status.state, status.pid, status.uptime_s) == ("dead", None, None)
    assert status.problem == "the process is gone"


@pytest.mark.parametrize("state", ["waiting", "stopped", "failed"])
def test_a_service_that_should_not_run_is_not_dead(tmp_path: Path, make_record: Make, state: str) -> None:
    """Its own state and problem are shown."""
    Records(tmp_path).write_service(make_record(state=state, phase=state, problem="no memory"))
    (status,) = read(tmp_path)
    assert (status.state, status.problem) == (state, "no memory")


def test_an_engine_that_does_not_answer_is_shown_without_numbers(tmp_path: Path, make_record: Make) -> None:
    """It may be loading, or hang."""
    url = f"http://127.0.0.1:{fake_plan(tmp_path).service('prefill').port}/metrics"
    Records(tmp_path).write_service(
        make_record(
            state="starting", phase="loading weights", pid=os.getpid(), start_ticks=own_start_ticks(), metrics_url=url
        )
    )
    (status,) = read(tmp_path)
    assert (status.state, status.pid) == ("starting", os.getpid())
    assert (status.running, status.kv_capacity_tokens) == (None, None)


def test_rows_are_for_programs_and_a_table_for_people() -> None:
    """The same content, once by name and once in words."""
    ready = ServiceStatus(
        service="decode",
        state="ready",
        phase="ready",
        pid=7,
        port=30200,
        model="m",
        uptime_s=185.0,
        running=2,
        queued=1,
        kv_used_tokens=100,
        kv_capacity_tokens=800,
        restarts=1,
        problem="",
    )
    router = ServiceStatus(
        service="router",
        state="starting",
        phase="gate",
        pid=None,
        port=30001,
        model="m",
        uptime_s=None,
        running=None,
        queued=None,
        kv_used_tokens=None,
        kv_capacity_tokens=None,
        restarts=0,
        problem="",
    )
    assert as_rows([ready])[0]["kv_capacity_tokens"] == 800
    console = Console(width=120)
    with console.capture() as capture:
        console.print(as_table([ready, router]))
    lines = [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]
    assert lines[0] == "model m"
    assert "decode ready, restarted 1x 7 30200 3 min 05 s 2 + 1 12.5% of 800" in lines
    assert "router starting: gate - 30001 - - -" in lines


@pytest.mark.parametrize("state", ["ready", "draining", "stopped", "closed"])
def test_the_state_is_never_cut(state: str) -> None:
    """At 80 columns with real pids, ports and pools."""
    service = ServiceStatus(
        service="prefill",
        state=state,
        phase=state,
        pid=1204612,
        port=47100,
        model="m",
        uptime_s=3 * 3600.0,
        running=64,
        queued=17,
        kv_used_tokens=1_000_000,
        kv_capacity_tokens=64_537_856,
        restarts=0,
        problem="",
    )
    console = Console(width=80)
    with console.capture() as capture:
        console.print(as_table([service]))
    row = capture.get().splitlines()[-1]
    assert [cell.strip() for cell in row.split("│")] == [
        "prefill",
        state,
        "1204612",
        "47100",
        "3 h 00 min",
        "64 + 17",
        "1.5% of 64.5M",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3600, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (86400, "1 d 0 h"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    """Two units at most."""
    assert duration(seconds) == text


def test_router_that_sends_requests_away_is_not_ready(tmp_path: Path) -> None:
    """It was drained; the line says how it opens again."""
    state = tmp_path / "router.json"
    state.write_text("{}", encoding="utf-8")
    plan = fake_plan(tmp_path, {"router": {"state": str(state)}})
    records = Records(tmp_path)

    async def live() -> list[ServiceStatus]:
        supervisors = [
            Supervisor(plan, service, output=io.BytesIO(), on_change=records.write_service, pin=False)
            for service in plan.services
        ]
        try:
            for supervisor in supervisors:
                await asyncio.wait_for(supervisor.start(), PATIENCE_S)
            state.write_text('{"healthy": false}', encoding="utf-8")
            return await read_status(str(tmp_path))
        finally:
            for supervisor in supervisors:
                await supervisor.stop(drain=False)

    states = {status.service: (status.state, status.problem) for status in asyncio.run(live())}
    assert states["prefill"] == states["decode"] == ("ready", "")
    assert states["router"] == ("closed", "new requests get 503; `dsv41 drain --undo` lets them in")
