"""Run the whole plan on this machine: engines together, the router after their gates, recovery as a pair, stop in safe order."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from typing import TYPE_CHECKING

from dsv41_serving.errors import Dsv41Error, GateError
from dsv41_serving.run.record import Records, ServiceRecord, StackRecord, StackState, own_start_ticks
from dsv41_serving.run.supervise import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, BinaryIO

    from dsv41_serving.plan.model import Plan

RESTART_LIMIT = 3
RESTART_WINDOW_S = 1800.0


class Stack:
    """Every service of a plan under one process. `on_change` is called with each new service record."""

    def __init__(
        self,
        plan: Plan,
        *,
        open_log: Callable[[str], BinaryIO],
        on_change: Callable[[ServiceRecord], None] = lambda _: None,
        on_state: Callable[[StackRecord], None] = lambda _: None,
        restart_delay_s: float = 2.0,
    ) -> None:
        """Prepare to run `plan`; `open_log` gives the stream that receives the output of a service."""
        self._plan = plan
        self._records = Records(plan.state_dir)
        self._on_change = on_change
        self._on_state = on_state
        self._restart_delay_s = restart_delay_s
        self._restarts: deque[float] = deque()
        self._stop = asyncio.Event()
        self._drain = True
        self._wanted: tuple[str, ...] = ()
        self._asked = asyncio.Event()
        self.record = StackRecord(
            pid=os.getpid(), start_ticks=own_start_ticks(), state="starting", node=plan.node, started_at=time.time()
        )
        self._supervisors = {
            service.name: Supervisor(plan, service, output=open_log(service.name), on_change=self._publish)
            for service in plan.services
        }

    def request_stop(self, *, drain: bool = True) -> None:
        """Ask for the stop; the second request, or drain=False, does not wait for running requests."""
        self._drain = drain and not self._stop.is_set()
        self._stop.set()

    def request_restart(self, *, pair: bool) -> None:
        """Ask for a restart of the router, or of the engines and the router, once everything is ready."""
        self._wanted = self._plan.stop_order if pair or self._wanted == self._plan.stop_order else ("router",)
        self._asked.set()

    async def run(self) -> None:
        """Start everything, keep it running, and return after a requested stop.

        An engine that ends takes the pair with it: prefill writes into decode's memory and each keeps addresses of the
        other, so both restart, and the router after them because it caches what its workers are. Raises GateError when a
        start fails or the pair has ended more than RESTART_LIMIT times within RESTART_WINDOW_S; everything is stopped then.
        """
        try:
            self._set_state("starting")
            await self._race_stop(self._start_all())
            while not self._stop.is_set():
                self._set_state("ready", ready_at=time.time())
                ended = await self._wait_for_an_end()
                if ended is not None:
                    await self._race_stop(self._recover(*ended))
                elif not self._stop.is_set():
                    await self._race_stop(self._restart())
        except Dsv41Error as error:
            await self._stop_all()
            self._set_state("failed", problem=str(error))
            raise
        except BaseException:
            self._drain = False
            await self._stop_all()
            self._set_state("failed", problem="interrupted")
            raise
        self._set_state("draining")
        await self._stop_all()
        self._set_state("stopped")

    async def _race_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, giving it up when a stop is requested."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _start_all(self) -> None:
        for supervisor in self._supervisors.values():
            self._publish(supervisor.record)
        engines = [self._supervisors[engine.name] for engine in self._plan.engines]
        starts = [asyncio.create_task(engine.start()) for engine in engines]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise
        await self._supervisors["router"].start()

    async def _wait_for_an_end(self) -> tuple[str, int] | None:
        """Return (service, exit status) of the first service that ends, or None when a stop or a restart was requested."""
        waits = {asyncio.create_task(s.wait()): name for name, s in self._supervisors.items()}
        requests = {asyncio.create_task(self._stop.wait()), asyncio.create_task(self._asked.wait())}
        try:
            done, _ = await asyncio.wait({*requests, *waits}, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set() or done <= requests:
                return None
            first = next(task for task in done if task not in requests)
            return waits[first], first.result()
        finally:
            for task in (*requests, *waits):
                task.cancel()

    async def _restart(self) -> None:
        """Restart what was asked for, in the safe order; running requests finish within the services' bounds."""
        names, self._wanted = self._wanted, ()
        self._asked.clear()
        self._set_state("restarting")
        for name in names:
            await self._supervisors[name].stop()
            self._supervisors[name].note_restart()
        if names == ("router",):
            await self._supervisors["router"].start()
        else:
            await self._start_all()

    async def _recover(self, name: str, status: int) -> None:
        """Restart what the end of service `name` makes unsafe: the router alone, or everything."""
        problem = self._supervisors[name].describe_end(status)
        self._supervisors[name].note_failure(problem)
        self._set_state("recovering", problem=f"{name} {problem}")
        self._count_restart(name, problem)
        names = ["router"] if name == "router" else list(self._plan.stop_order)
        for other in names:
            # What still runs cannot finish its requests: their other half is gone.
            await self._supervisors[other].stop(drain=False)
            self._supervisors[other].note_restart()
        await asyncio.sleep(self._restart_delay_s * 4 ** (len(self._restarts) - 1))
        if name == "router":
            await self._supervisors["router"].start()
        else:
            await self._start_all()

    def _count_restart(self, name: str, problem: str) -> None:
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= RESTART_LIMIT:
            raise GateError(
                f"{problem}, after {RESTART_LIMIT} restarts within {RESTART_WINDOW_S / 60:.0f} minutes; giving up",
                where=name,
                remedy="read its log, then `dsv41 up` again",
            )
        self._restarts.append(now)

    async def _stop_all(self) -> None:
        for name in self._plan.stop_order:
            supervisor = self._supervisors[name]
            drain = self._drain
            stopping = asyncio.create_task(supervisor.stop(drain=drain))
            if drain:
                # A second request while draining ends the wait.
                while not stopping.done():
                    await asyncio.wait({stopping}, timeout=0.2)
                    if not self._drain and not stopping.done():
                        stopping.cancel()
                        await asyncio.wait({stopping})
                        await supervisor.stop(drain=False)
            await asyncio.wait({stopping})

    def _publish(self, record: ServiceRecord) -> None:
        self._records.write_service(record)
        self._on_change(record)

    def _set_state(self, state: StackState, *, problem: str = "", ready_at: float | None = None) -> None:
        self.record = self.record.model_copy(
            update={"state": state, "problem": problem, "ready_at": ready_at or self.record.ready_at}
        )
        self._records.write_stack(self.record)
        self._on_state(self.record)
