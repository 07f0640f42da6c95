"""Run one service in the foreground: start it, follow its start, open the gate, watch it, drain it, stop it.

One supervisor owns one process tree. `dsv41 run ROLE` is one supervisor that talks to systemd; `dsv41 up` holds one for each
service of the plan.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from dsv41_serving.check.gate import check_engine, check_router
from dsv41_serving.check.result import Finding, all_passed
from dsv41_serving.errors import GateError
from dsv41_serving.facts import count_oom_kills, find_listener, read_facts, read_process
from dsv41_serving.plan.ports import describe_owner
from dsv41_serving.run.drain import wait_until_idle
from dsv41_serving.run.history import StartHistory
from dsv41_serving.run.phases import GATE, LAUNCHING, READY, WARM_UP, PhaseTracker
from dsv41_serving.run.record import ServiceRecord, ServiceState, current_boot, own_start_ticks
from dsv41_serving.run.session import kill_session, prepare_child, session_members
from dsv41_serving.run.sweep import remove_files, shared_memory_of
from dsv41_serving.run.warm_up import warm_up
from dsv41_serving.transport.lanes import WriteTables, choose_lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Plan, Service

GATE_RETRY_S = 1.0
_DYING_S = 2.0
TAIL_LINES = 40
ENGINE_EXIT_S = 2.0
# SGLang looks for its own end every 5 s and then gives its schedulers 15 s to release the memory of the GPU; killed in the midst
# of that, they may leave it in use (tokenizer_manager.py, sigterm_watchdog).
GPU_ENGINE_EXIT_S = 25.0
_READ_CHUNK = 1 << 16
_READ_PROGRESS_BYTES = 1 << 26
# What uvicorn prints; SGLang goes on for two minutes and then blames its own warm-up.
_PORT_REFUSED = re.compile(r"error while attempting to bind on address \('[^']*', (\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Supervisor:
    """The life of one service. `on_change` is called with every new record."""

    def __init__(
        self,
        plan: Plan,
        service: Service,
        *,
        output: BinaryIO,
        on_change: Callable[[ServiceRecord], None],
        pin: bool = True,
    ) -> None:
        """Supervise `service` of `plan`; what it prints goes to `output` byte by byte."""
        self.service = service
        self._plan = plan
        self._output = output
        self._on_change = on_change
        self._pin = pin
        self._history = StartHistory(plan.state_dir, service.name)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._tracker = PhaseTracker(service.kind)
        self._writes = WriteTables()
        self._durations: dict[str, float] = {}
        self._progress_at = 0.0
        self._read_bytes = 0
        self._refused_port: int | None = None
        self._oom_kills = 0
        now = time.time()
        self.record = ServiceRecord(
            name=service.name,
            kind=service.kind,
            state="waiting",
            phase="waiting",
            detail=f"for {' and '.join(service.after)}" if service.after else "",
            boot=current_boot(),
            supervisor_pid=os.getpid(),
            supervisor_start_ticks=own_start_ticks(),
            port=service.port,
            url=service.url,
            metrics_url=service.metrics_url,
            model=plan.served_model_name,
            digest=service.digest,
            started_at=now,
            phase_at=now,
        )

    async def start(self) -> None:
        """Start the service and return when its gate has passed and it is warm.

        Raises GateError when the process ends first, when it makes no progress for `start_timeout_s`, when the gate
        keeps failing for that long after the port answers, or when a prompt fails that was to warm it up.
        """
        service = self.service
        self._tracker = PhaseTracker(service.kind)
        self._writes = WriteTables()
        self._durations = {}
        self._tail.clear()
        self._refused_port = None
        self._oom_kills = count_oom_kills()
        remove_files(self.record)
        tmp_dir = tempfile.mkdtemp(prefix=f"dsv41-{service.name}-")
        # Thousands of modules are imported by several processes: compiling each anew costs a minute.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        # With a pipe of its own asyncio would see the end of the process only when its last worker closes the output too.
        output, inherited = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *service.argv,
                env={**environment, "TMPDIR": tmp_dir, **fill_in(service.env, tmp_dir)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=inherited,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare_child(service.placement, pin=self._pin),
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(inherited)
        started = read_process(self._process.pid)
        now = time.time()
        self._progress_at = time.monotonic()
        self._read_bytes = 0
        self._update(
            "starting",
            LAUNCHING,
            pid=self._process.pid,
            start_ticks=started.start_ticks if started else None,
            started_at=now,
            problem="",
            lane="",
            tmp_dir=tmp_dir,
            shared_memory=(),
        )
        self._reader = asyncio.create_task(self._follow_output(output))
        try:
            await self._wait_for_gate()
            await self._warm_up()
        except GateError as error:
            self._update("failed", self.record.phase, problem=str(error))
            await self.kill()
            raise
        self._finish_phase()
        self._history.add(self._durations)
        self._note_shared_memory()
        self._update("ready", READY, ready_at=time.time(), expected_s=None)

    async def wait(self) -> int:
        """Wait until the main process ends; return its exit status (negative: the signal)."""
        if self._process is None:
            raise RuntimeError("wait() before start()")
        status = await self._process.wait()
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=2.0)
        return status

    async def stop(self, *, drain: bool = True) -> None:
        """Drain within the service's bound, then stop, then make sure that nothing of its process tree is left."""
        process = self._process
        if process is None:
            self._update("stopped", "stopped")
            return
        if process.returncode is None:
            if drain and self.service.is_engine and self.record.state in {"ready", "draining"}:
                self._update("draining", "draining")
                left = await wait_until_idle(self.service, self.service.drain_timeout_s, self.show_drain)
                if left:
                    self._update("draining", "draining", detail=f"gave up: {left}")
            self._update("draining", "stopping")
            self._note_shared_memory()
            await self._terminate(process)
        await self.kill()
        if self.record.state != "failed":
            self._update("stopped", "stopped")

    async def kill(self) -> None:
        """End every process of the service at once."""
        if self._process is None:
            return
        self._note_shared_memory()
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.kill()
        await asyncio.to_thread(kill_session, self._process.pid)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.wait(), 5.0)
        remove_files(self.record)

    def note_failure(self, problem: str) -> None:
        """Record that the service has failed, and why."""
        self._update("failed", "failed", problem=problem)

    def note_restart(self) -> None:
        """Count one restart and go back to waiting."""
        self._update("waiting", "waiting to restart", restarts=self.record.restarts + 1, ready_at=None)

    def describe_end(self, status: int) -> str:
        """Say how the service ended; `status` is negative for a signal. A child that lacked memory takes its parent with it."""
        killed = count_oom_kills() - self._oom_kills
        lack = f" (the kernel ended {killed} process(es) for lack of memory meanwhile)" if killed > 0 else ""
        return f"ended with status {status}{lack}"

    def tail(self) -> str:
        """Return the last lines the service printed."""
        return "\n".join(self._tail)

    async def _terminate(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), exit_patience_s(self.service))

    async def _wait_for_gate(self) -> None:
        ended = asyncio.create_task(self.wait())  # with the rest of its output, which says why
        try:
            while True:
                if ended.done():
                    raise GateError(
                        f"{self.describe_end(ended.result())} while {self.record.phase}; last line: {self._last_line()}",
                        where=self.service.name,
                        remedy="read its log",
                    )
                if self._refused_port is not None:
                    raise self._explain_refusal(self._refused_port)
                findings: list[Finding] = []
                if self._tracker.phase == "serving HTTP":
                    if self.record.phase != GATE:
                        self._enter(GATE)
                    findings = await self._check()
                    if all_passed(findings):
                        return
                if self._stalled_s() > self.service.start_timeout_s:
                    failed = next((f.as_line() for f in findings if not f.passed), f"phase {self.record.phase}")
                    raise GateError(
                        f"no progress for {self.service.start_timeout_s:.0f} s ({failed})",
                        where=self.service.name,
                        remedy="read its log",
                    )
                await asyncio.wait({ended}, timeout=GATE_RETRY_S if findings else 0.1)
        finally:
            ended.cancel()

    async def _warm_up(self) -> None:
        """Raise GateError when the service ends or fails meanwhile."""
        if not self.service.warm_up:
            return

        def say(detail: str) -> None:
            self._progress_at = time.monotonic()  # the lines of the gate before it were none
            self._enter(WARM_UP, detail=detail)

        ended = asyncio.create_task(self.wait())
        work = asyncio.create_task(warm_up(self.service, say))
        try:
            await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and work.exception() is not None:
                # The connection of a process that dies is gone before the process is.
                await asyncio.wait({ended}, timeout=_DYING_S)
            if ended.done():
                raise GateError(
                    f"{self.describe_end(ended.result())} while warming up; last line: {self._last_line()}",
                    where=self.service.name,
                    remedy="read its log",
                )
            work.result()
        finally:
            for task in (ended, work):
                task.cancel()
            await asyncio.gather(ended, work, return_exceptions=True)

    def _explain_refusal(self, port: int) -> GateError:
        """Say who took `port` between the plan's look at it and the end of loading."""
        listener = find_listener(port)
        owner = describe_owner(listener) if listener else "an outgoing connection"
        return GateError(
            f"port {port} was taken by {owner} while the service loaded",
            where=self.service.name,
            remedy="start again; `dsv41 preflight` says whether the kernel hands that port to clients (ip_local_port_range)",
        )

    async def _check(self) -> list[Finding]:
        pid, ticks = self.record.pid, self.record.start_ticks
        if pid is None or ticks is None:
            raise GateError("ended before it could be looked at", where=self.service.name, remedy="read its log")
        if self.service.is_engine:
            # What they hold now: the facts of the plan are from before the start.
            gpus = (await asyncio.to_thread(read_facts)).gpus if self.service.placement.gpus else ()
            findings = await check_engine(self._plan, self.service, pid, ticks, gpus)
        else:
            findings = await check_router(self._plan, self.service, pid, ticks)
        # Two engines can have the same check in one gate: it passed when both did.
        checks = {f.check: all(each.passed for each in findings if each.check == f.check) for f in findings}
        self.record = self.record.model_copy(update={"checks": checks})
        failed = next((finding.seen for finding in findings if not finding.passed), "")
        if failed != self.record.detail:
            self._update(self.record.state, self.record.phase, detail=failed)
        return findings

    async def _follow_output(self, output: int) -> None:
        """Pass what arrives on the descriptor `output` through untouched, and read it for phases on the way."""
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", buffering=0))
        pending = b""
        while chunk := await stream.read(_READ_CHUNK):
            self._output.write(chunk)
            self._output.flush()
            *lines, pending = re.split(rb"[\r\n]", pending + chunk)
            for line in lines:
                self._follow_line(line)
        self._follow_line(pending)

    def _follow_line(self, raw: bytes) -> None:
        line = _COLOUR.sub("", raw.decode(errors="replace")).strip()
        if not line:
            return
        self._tail.append(line)
        if self.record.state == "starting" and (refused := _PORT_REFUSED.search(line)):
            self._refused_port = int(refused[1])
        if self.service.kind == "prefill" and self._writes.feed(line):
            self.record = self.record.model_copy(update={"lane": choose_lane(self._writes.lanes)})
            self._on_change(self.record)
        if self.record.phase == GATE:
            return  # the gate's own requests are logged too: no progress
        self._progress_at = time.monotonic()
        if self.record.state == "starting" and self._tracker.feed(line):
            self._enter(self._tracker.phase, detail=self._tracker.detail)

    def _stalled_s(self) -> float:
        """Return the seconds since the start last made progress: a log line, or 64 MiB read by its processes."""
        total = sum(_bytes_read(pid) for pid in session_members(self.record.pid)) if self.record.pid else 0
        if total > self._read_bytes + _READ_PROGRESS_BYTES:
            self._read_bytes = total
            self._progress_at = time.monotonic()
        return time.monotonic() - self._progress_at

    @property
    def progress_at(self) -> float:
        """Monotonic time of the last sign of progress of the running start."""
        return self._progress_at

    def show_wait(self, workers: str) -> None:
        """Say what the start waits for."""
        if workers != self.record.detail:
            self._update("waiting", "waiting", detail=workers)

    def show_drain(self, left: str) -> None:
        """Say what the stop waits for."""
        if left != self.record.detail:
            self._update("draining", "draining", detail=left)

    def _note_shared_memory(self) -> None:
        """Remember what must be removed should the service be killed; the processes that know it will be gone then."""
        if self.record.pid is not None:
            names = shared_memory_of(self.record.pid) | set(self.record.shared_memory)
            self.record = self.record.model_copy(update={"shared_memory": tuple(sorted(names))})

    def _enter(self, phase: str, detail: str = "") -> None:
        if phase == self.record.phase:
            self._update("starting", phase, detail=detail)
            return
        self._finish_phase()
        self._note_shared_memory()
        self._update("starting", phase, detail=detail)

    def _finish_phase(self) -> None:
        if self.record.state == "starting":
            self._durations[self.record.phase] = time.time() - self.record.phase_at

    def _update(self, state: ServiceState, phase: str, *, detail: str = "", **changes: object) -> None:
        moved = phase != self.record.phase or state != self.record.state
        update: dict[str, object] = {"state": state, "phase": phase, "detail": detail, **changes}
        if moved:
            update["phase_at"] = time.time()
            update.setdefault("expected_s", self._history.expected_s(phase) if state == "starting" else None)
        self.record = self.record.model_copy(update=update)
        self._on_change(self.record)

    def _last_line(self) -> str:
        """Return the line most likely to say why: the last one with 'Error', else the last."""
        errors = [line for line in self._tail if "Error" in line or "error:" in line]
        return (errors or list(self._tail) or ["it printed nothing"])[-1][:300]


def exit_patience_s(service: Service) -> float:
    """Return how long `service` has between SIGTERM and SIGKILL.

    The router ends its running requests within its own bound. An engine has nothing left to do after the drain, and on a CPU
    nothing to release.
    """
    if not service.is_engine:
        return service.drain_timeout_s + 2.0
    return GPU_ENGINE_EXIT_S if service.placement.gpus else ENGINE_EXIT_S


def fill_in(env: dict[str, str], tmp_dir: str) -> dict[str, str]:
    """Return `env` with {TMPDIR} replaced: the plan is made before the directory of a start exists."""
    return {key: value.replace("{TMPDIR}", tmp_dir) for key, value in env.items()}


def _bytes_read(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io", encoding="ascii") as stream:  # noqa: PTH123
        return int(stream.readline().split()[1])
    return 0
