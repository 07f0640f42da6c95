"""The whole plan under one process: order of start and stop, recovery, and giving up; programs play the services."""

from __future__ import annotations

import asyncio
import io
import os
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.errors import GateError
from dsv41_serving.run import stack as stack_module
from dsv41_serving.run import supervise
from dsv41_serving.run.record import Records
from dsv41_serving.run.session import session_members
from dsv41_serving.run.stack import Stack
from tests.unit.run.fake_plan import fake_plan
from tests.unit.run.waiting import PATIENCE_S
from tests.unit.run.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from dsv41_serving.plan import Plan
    from dsv41_serving.run.record import ServiceRecord, StackRecord

NAMES = ("prefill", "decode", "router")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GATE_RETRY_S", 0.02)


class Run:
    """One stack with everything it reported."""

    def __init__(self, plan: Plan) -> None:
        """Prepare `plan`."""
        self.plan = plan
        self.services: Watch[ServiceRecord] = Watch()
        self.states: Watch[StackRecord] = Watch()
        self.stack = Stack(
            plan,
            open_log=lambda _: io.BytesIO(),
            on_change=self.services.note,
            on_state=self.states.note,
            restart_delay_s=0.0,
        )

    def live(self, life: Callable[[], Awaitable[Any]]) -> Any:
        """Run the stack beside `life`, then stop it; what goes wrong in either is raised."""

        async def run() -> Any:
            running = asyncio.create_task(self.stack.run())
            living = asyncio.ensure_future(life())
            await asyncio.wait({running, living}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
            if running.done() and running.exception() is not None:
                living.cancel()
            else:
                self.stack.request_stop()
            results = await asyncio.wait_for(asyncio.gather(running, living, return_exceptions=True), PATIENCE_S)
            if isinstance(results[0], BaseException):
                raise results[0]
            if isinstance(results[1], BaseException):
                raise results[1]
            return results[1]

        return asyncio.run(run())

    async def ready(self, *, after: int = 0) -> dict[str, ServiceRecord]:
        """Wait until the stack is ready, past its first `after` states; return the newest record of each service."""
        await self.states.see(lambda record: record.state == "ready", after=after)
        return {record.name: record for record in self.services.records}

    def left(self) -> list[int]:
        """Return the processes that are left of any service ever started."""
        pids = {record.pid for record in self.services.records if record.pid is not None}
        return [member for pid in pids for member in session_members(pid)]

    def order_of(self, state: str) -> list[str]:
        """Return the services in the order in which they first came to `state`."""
        return list(dict.fromkeys(record.name for record in self.services.records if record.state == state))


def play(tmp_path: Path, faults: Mapping[str, Mapping[str, Any]] | None = None) -> Run:
    """Return a run of the pair and the router."""
    return Run(fake_plan(tmp_path, faults))


def kill(record: ServiceRecord) -> None:
    """Kill the main process of a service, as the kernel does when memory runs out."""
    assert record.pid is not None
    os.kill(record.pid, 9)


def test_a_stack_starts_serves_and_stops(tmp_path: Path) -> None:
    """Engines together, the router after their gates; stop in the order that is safe for KV memory; nothing is left."""
    run = play(tmp_path)
    services = run.live(run.ready)
    assert {name: record.state for name, record in services.items()} == dict.fromkeys(NAMES, "ready")
    assert run.order_of("ready")[-1] == "router"
    router_started = next(r.started_at for r in run.services.records if r.name == "router" and r.state == "starting")
    assert all(services[name].ready_at <= router_started for name in ("prefill", "decode"))
    assert run.order_of("stopped") == ["router", "prefill", "decode"]
    assert [record.state for record in run.states.records] == ["starting", "ready", "draining", "stopped"]
    assert run.left() == []
    records = Records(tmp_path)
    stack = records.read_stack()
    assert stack is not None
    assert (stack.state, stack.pid, stack.problem) == ("stopped", os.getpid(), "")
    assert {record.name: record.state for record in records.read_services()} == dict.fromkeys(NAMES, "stopped")


def test_engines_start_at_the_same_time(tmp_path: Path) -> None:
    """Neither waits for the other's gate: loading takes minutes."""
    run = play(tmp_path, {"prefill": {"hang": True}, "decode": {"hang": True}})

    async def life() -> None:
        for name in ("prefill", "decode"):
            await run.services.see(lambda record, name=name: record.name == name and record.state == "starting")

    run.live(life)
    assert run.order_of("ready") == []
    assert run.left() == []


def test_a_start_that_fails_stops_everything(tmp_path: Path) -> None:
    """The service that failed is named; the other engine is taken back and the router never started."""
    run = play(tmp_path, {"decode": {"lines": ["ValueError: no such backend"], "exit": 1}, "prefill": {"hang": True}})
    with pytest.raises(GateError) as error:
        run.live(run.ready)
    line = "decode: ended with status 1 while importing; last line: ValueError: no such backend; read its log"
    assert str(error.value) == line
    assert "router" not in run.order_of("starting")
    assert (run.stack.record.state, run.stack.record.problem) == ("failed", line)
    assert run.left() == []


def test_a_stop_during_the_start_takes_it_back(tmp_path: Path) -> None:
    """Without an error: it was asked for."""
    run = play(tmp_path, {"decode": {"hang": True}})

    async def life() -> None:
        await run.services.see(lambda record: record.name == "prefill" and record.state == "ready")

    run.live(life)
    assert run.stack.record.state == "stopped"
    assert "router" not in run.order_of("starting")
    assert run.left() == []


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_an_engine_that_ends_restarts_the_pair_and_the_router(tmp_path: Path, victim: str) -> None:
    """Prefill writes into decode's memory and the router caches who they are: none of them may stay."""
    run = play(tmp_path)

    async def life() -> tuple[dict[str, ServiceRecord], dict[str, ServiceRecord]]:
        before = await run.ready()
        seen = len(run.states.records)
        kill(before[victim])
        return before, await run.ready(after=seen)

    before, after = run.live(life)
    assert all(before[name].pid != after[name].pid for name in NAMES)
    assert {name: record.restarts for name, record in after.items()} == dict.fromkeys(NAMES, 1)
    assert {name: record.problem for name, record in after.items()} == dict.fromkeys(NAMES, "")
    recovering = next(record for record in run.states.records if record.state == "recovering")
    assert recovering.problem == f"{victim} ended with status -9"
    assert run.left() == []


def test_a_router_that_ends_restarts_alone(tmp_path: Path) -> None:
    """Requests that run in the engines are lost with it, their caches are not."""
    run = play(tmp_path)

    async def life() -> tuple[dict[str, ServiceRecord], dict[str, ServiceRecord]]:
        before = await run.ready()
        seen = len(run.states.records)
        kill(before["router"])
        return before, await run.ready(after=seen)

    before, after = run.live(life)
    assert [name for name in NAMES if before[name].pid != after[name].pid] == ["router"]
    assert {name: record.restarts for name, record in after.items()} == {"prefill": 0, "decode": 0, "router": 1}


def test_recovery_gives_up_after_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that keeps failing is stopped for good, and says how often it tried."""
    monkeypatch.setattr(stack_module, "RESTART_LIMIT", 1)
    run = play(tmp_path)

    async def life() -> None:
        kill((await run.ready())["router"])
        seen = len(run.states.records)
        kill((await run.ready(after=seen))["router"])
        await run.states.see(lambda record: record.state == "failed")

    with pytest.raises(GateError) as error:
        run.live(life)
    line = (
        "router: ended with status -9, after 1 restarts within 30 minutes; giving up; "
        "read its log, then `dsv41 up` again"
    )
    assert str(error.value) == line
    assert run.stack.record.problem == line
    assert run.left() == []


def test_old_failures_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a day is no reason to stop serving."""
    monkeypatch.setattr(stack_module, "RESTART_LIMIT", 1)
    monkeypatch.setattr(stack_module, "RESTART_WINDOW_S", 0.0)
    run = play(tmp_path)

    async def life() -> int:
        services = await run.ready()
        for _ in range(2):
            seen = len(run.states.records)
            kill(services["router"])
            services = await run.ready(after=seen)
        return services["router"].restarts

    assert run.live(life) == 2


def test_a_second_request_to_stop_does_not_wait(tmp_path: Path) -> None:
    """The first waits for running requests, for a minute here; the second ends them."""
    run = play(tmp_path, {"prefill": {"running": 1}})

    async def life() -> None:
        await run.ready()
        run.stack.request_stop()
        await run.services.see(lambda record: record.name == "prefill" and record.detail == "1 running")
        run.stack.request_stop()
        await run.states.see(lambda record: record.state == "stopped")

    run.live(life)
    assert not any("gave up" in record.detail for record in run.services.records)
    assert run.order_of("stopped") == ["router", "prefill", "decode"]
    assert run.left() == []


def test_cancelled_the_stack_leaves_nothing(tmp_path: Path) -> None:
    """Whatever ends the event loop."""
    run = play(tmp_path)

    async def live() -> None:
        running = asyncio.create_task(run.stack.run())
        await asyncio.wait_for(run.ready(), PATIENCE_S)
        running.cancel()
        await asyncio.wait({running}, timeout=PATIENCE_S)
        assert running.cancelled()

    asyncio.run(live())
    assert (run.stack.record.state, run.stack.record.problem) == ("failed", "interrupted")
    assert run.left() == []


@pytest.mark.parametrize(
    ("pair", "restarted"), [(False, {"router"}), (True, {"prefill", "decode", "router"})], ids=["router", "pair"]
)
def test_what_is_asked_for_is_restarted_in_order(tmp_path: Path, pair: bool, restarted: set[str]) -> None:  # noqa: FBT001
    """Nothing else is touched, and it is no failure: later ones still have all their tries."""
    run = Run(fake_plan(tmp_path))

    async def life() -> tuple[dict[str, ServiceRecord], dict[str, ServiceRecord]]:
        before = await run.ready()
        seen = len(run.states.records)
        run.stack.request_restart(pair=pair)
        return before, await run.ready(after=seen)

    before, after = run.live(life)
    assert {name for name in NAMES if before[name].pid != after[name].pid} == restarted
    assert {name: after[name].restarts for name in NAMES} == {name: int(name in restarted) for name in NAMES}
    assert "restarting" in [record.state for record in run.states.records]
    stopped = [record.name for record in run.services.records if record.phase == "waiting to restart"]
    assert list(dict.fromkeys(stopped)) == [name for name in run.plan.stop_order if name in restarted]
    assert list(run.stack._restarts) == []
    assert run.left() == []


def test_a_stop_comes_before_a_restart_that_was_asked_for(tmp_path: Path) -> None:
    """Whoever asks for both wants the end."""
    run = Run(fake_plan(tmp_path))

    async def life() -> None:
        await run.ready()
        run.stack.request_restart(pair=True)
        run.stack.request_stop()

    run.live(life)
    assert run.states.records[-1].state == "stopped"
    assert "restarting" not in [record.state for record in run.states.records]
    assert run.left() == []
