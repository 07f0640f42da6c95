"""`dsv41 run ROLE`: one service in the foreground, as systemd runs it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING

import httpx

from dsv41_serving.check.access import Access, find_access, find_engine_access, open_client
from dsv41_serving.errors import GateError
from dsv41_serving.run.notify import Notifier
from dsv41_serving.run.prepare import hold_lock
from dsv41_serving.run.progress import sentence
from dsv41_serving.run.record import Records, ServiceRecord
from dsv41_serving.run.supervise import GPU_ENGINE_EXIT_S, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from dsv41_serving.plan.model import Plan, Service

_WORKER_POLL_S = 0.5
_EXTEND_EVERY_S = 5.0
_WRITER_POLL_S = 0.1
# What a writer needs to end after its drain.
_WRITER_EXIT_S = GPU_ENGINE_EXIT_S + 5.0


def report_preparation(service: Service, say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what takes each step before the start of `service`: making a model may take longer than a start that stalls."""
    notifier = Notifier()

    def report(line: str) -> None:
        say(line)
        notifier.status(line)
        notifier.extend_start(service.start_timeout_s)

    return report


def run_service(
    plan: Plan,
    service: Service,
    *,
    output: BinaryIO | None = None,
    say: Callable[[str], None],
) -> None:
    """Run `service` until SIGTERM or SIGINT, then drain and stop it.

    The service's own output goes to stdout untouched; progress goes to `say`, one line per change, and to systemd when
    it listens. Raises GateError when the service does not pass its gate or ends by itself.
    """
    with hold_lock(plan, service.name):
        asyncio.run(_run(plan, service, output or sys.stdout.buffer, say))


async def _run(
    plan: Plan,
    service: Service,
    output: BinaryIO,
    say: Callable[[str], None],
) -> None:
    notifier = Notifier()
    records = Records(plan.state_dir)
    shown = ""

    def publish(record: ServiceRecord) -> None:
        nonlocal shown
        records.write_service(record)
        line = sentence(record)
        if line != shown:
            shown = line
            notifier.status(line)
            say(f"{record.name}: {line}")

    # Under systemd the unit owns CPUs and memory policy; only one of the two may set them.
    supervisor = Supervisor(plan, service, output=output, on_change=publish, pin=not notifier.enabled)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    publish(supervisor.record)
    extending = asyncio.create_task(_extend_while_progressing(notifier, supervisor, service))
    starting = asyncio.create_task(_start(plan, service, supervisor))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            extending.cancel()
            notifier.ready(f"ready on port {service.port}")
            # An engine on loopback asks for no key, and its unit has none.
            access = find_engine_access(service) if service.is_engine else find_access(plan)
            await _watch(service, access, supervisor, notifier, stopping)
    finally:
        for task in (extending, starting, stopping):
            task.cancel()
        await asyncio.wait({extending, starting, stopping})
        notifier.stopping("draining")
        await _stop(plan, service, supervisor, records)


async def _stop(plan: Plan, service: Service, supervisor: Supervisor, records: Records) -> None:
    """Leave in the order that is safe for KV memory, though all engines are told at the same moment.

    Whoever others write into stays until they are gone, for as long as their own stop may take. Requests that need the other
    half of a pair that is already gone cannot finish, so nothing is waited for then.
    """
    writers = [writer.name for writer in plan.writers(service)]
    peers = [peer.name for peer in plan.peers(service)]
    deadline = time.monotonic() + plan.stop_bound_s(service) - service.drain_timeout_s + _WRITER_EXIT_S
    had_peers = _alive(records, peers)
    # Memory of a process that has ended is nobody's to write into.
    while supervisor.record.alive and (left := _alive(records, writers)) and time.monotonic() < deadline:
        supervisor.show_drain(f"{' and '.join(left)} to end first")
        await asyncio.sleep(_WRITER_POLL_S)
    await supervisor.stop(drain=bool(had_peers) or not peers)


def _alive(records: Records, names: Sequence[str]) -> list[str]:
    """Return those of `names` whose process still runs."""
    return [record.name for record in records.read_services() if record.name in names and record.alive]


async def _start(plan: Plan, service: Service, supervisor: Supervisor) -> None:
    await _wait_for_workers(plan, service, supervisor.show_wait)
    await supervisor.start()


async def _wait_for_workers(plan: Plan, service: Service, show: Callable[[str], None]) -> None:
    """Hold the router back until its engines answer: a worker it cannot register at start is lost for good.

    `show` is told what it waits for. Engines of other hosts are waited for without a limit: when those start is not known
    here, and nobody else would start the router after them. Raises GateError after the start limit of the engines of this host.
    """
    workers = [plan.service(name) for name in service.after]
    deadline = time.monotonic() + max((worker.start_timeout_s for worker in workers), default=0.0)
    async with httpx.AsyncClient(timeout=5.0) as client:
        while True:
            workers = [worker for worker in workers if not await _answers(client, worker.url)]
            late = [worker.name for worker in workers if worker in plan.services]
            if not workers:
                return
            if late and time.monotonic() > deadline:
                raise GateError(
                    f"{' and '.join(late)} did not come up", where=service.name, remedy="start the engines first"
                )
            show(f"for {' and '.join(_place(plan, worker) for worker in workers)}")
            await asyncio.sleep(_WORKER_POLL_S)


def _place(plan: Plan, worker: Service) -> str:
    return worker.name if worker in plan.services else f"{worker.name} on {worker.node}"


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health_generate")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def _extend_while_progressing(notifier: Notifier, supervisor: Supervisor, service: Service) -> None:
    """Move systemd's start limit along with the last sign of progress; without progress it runs out by itself."""
    seen = 0.0
    while True:
        if supervisor.progress_at > seen or supervisor.record.state == "waiting":
            seen = supervisor.progress_at
            notifier.extend_start(service.start_timeout_s)
        await asyncio.sleep(_EXTEND_EVERY_S)


async def _watch(
    service: Service, access: Access, supervisor: Supervisor, notifier: Notifier, stopping: asyncio.Task[object]
) -> None:
    """Feed the watchdog while the service answers, until a stop is requested. Raises GateError when the service ends."""
    ended = asyncio.create_task(supervisor.wait())
    period = notifier.watchdog_s / 2 if notifier.watchdog_s else None
    try:
        async with open_client(access, period or 5.0) as client:
            while not stopping.done():
                await asyncio.wait({ended, stopping}, timeout=period, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    problem = supervisor.describe_end(ended.result())
                    supervisor.note_failure(problem)
                    raise GateError(problem, where=service.name, remedy="read its log")
                if period is not None and await _is_alive(client, service):
                    notifier.alive()
    finally:
        ended.cancel()


async def _is_alive(client: httpx.AsyncClient, service: Service) -> bool:
    try:
        return (await client.get(f"{service.url}/health")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
