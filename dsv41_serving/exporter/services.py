"""The installation and its services: run records against the plan, start-up progress, cost in memory and CPU."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsv41_serving.exporter import metrics
from dsv41_serving.plan.install import read_plan
from dsv41_serving.run.history import StartHistory
from dsv41_serving.run.phases import GATE, LAUNCHING, WARM_UP, phases_of
from dsv41_serving.run.record import Records, ServiceRecord, seconds_since

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family
    from dsv41_serving.plan.model import Plan, Service

STATES = ("waiting", "starting", "ready", "draining", "stopped", "failed", "dead", "absent")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
# Fields of proc_pid_stat(5), counted from the state, which follows the command name in parentheses.
_SESSION, _UTIME, _STIME, _RSS = 3, 11, 12, 21


class ServicesSource:
    """States, starts and gates of the services of a plan."""

    name = "services"

    def __init__(self, plan: Plan, *, plan_file: Path | None = None, root: Path = Path("/")) -> None:
        """Look at the records of `plan`; processes are read below `root`.

        What is installed now is read from `plan_file` again when it changes: a plan that was rendered and not started is the
        drift that shall be seen.
        """
        self._plan = plan
        self._installed = InstalledPlan(plan, plan_file)
        self._records = Records(plan.state_dir)
        self._root = root

    def read(self) -> Iterable[Family]:
        """Return the families of release, states, starts, gates and cost."""
        records = {record.name: record for record in self._records.read_services()}
        pairs = [(service, records.get(service.name)) for service in self._plan.services]
        yield self._release()
        yield from self._objectives()
        yield from _states(pairs, self._installed.digests())
        yield from _starts(pairs, self._plan.state_dir)
        yield _gates(pairs)
        yield from self._costs(pairs)

    def _release(self) -> Family:
        family = metrics.RELEASE_INFO.family()
        plan = self._plan
        labels = [plan.release, version("dsv41-serving"), _installed("sglang"), plan.profile, plan.shape]
        family.add_metric([*labels, plan.model.manifest], 1)
        return family

    def _objectives(self) -> Iterable[Family]:
        share, seconds = metrics.OBJECTIVE.family(), metrics.OBJECTIVE_SECONDS.family()
        share.add_metric([], self._plan.monitoring.objective)
        seconds.add_metric(["first_token"], self._plan.monitoring.first_token_objective_s)
        seconds.add_metric(["between_tokens"], self._plan.monitoring.between_tokens_objective_s)
        return share, seconds

    def _costs(self, pairs: list[tuple[Service, ServiceRecord | None]]) -> Iterable[Family]:
        resident, cpu = metrics.SERVICE_RESIDENT.family(), metrics.SERVICE_CPU.family()
        by_session = cost_by_session(self._root)
        for service, record in pairs:
            if record is not None and record.pid in by_session and record.alive:
                resident.add_metric([service.name], by_session[record.pid].resident_bytes)
                cpu.add_metric([service.name], by_session[record.pid].cpu_seconds)
        return resident, cpu


class InstalledPlan:
    """The plan that a start would take now."""

    def __init__(self, plan: Plan, file: Path | None) -> None:
        """Begin with `plan`; without a file it never changes."""
        self._file = file
        self._read_at = 0
        self._digests = {service.name: service.digest for service in plan.services}

    def digests(self) -> dict[str, str]:
        """Return service -> digest of its command. Raises InputError when the file is damaged."""
        changed_at = self._file.stat().st_mtime_ns if self._file is not None and self._file.exists() else 0
        if self._file is not None and changed_at > self._read_at:
            self._digests = {service.name: service.digest for service in read_plan(self._file).services}
            self._read_at = changed_at
        return self._digests


class Cost(NamedTuple):
    """What the living processes of one session use."""

    resident_bytes: int
    cpu_seconds: float


def cost_by_session(root: Path = Path("/")) -> dict[int, Cost]:
    """Return the cost of every session, from one pass over procfs."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for entry in (root / "proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            total = sums[int(fields[_SESSION])]
            total[0] += int(fields[_RSS]) * _PAGE
            total[1] += (int(fields[_UTIME]) + int(fields[_STIME])) / _TICK
    return {session: Cost(int(resident), cpu) for session, (resident, cpu) in sums.items()}


def state_of(record: ServiceRecord | None) -> str:
    """Return the state of a service, one of STATES: 'dead' when the recorded process is gone without a word."""
    if record is None:
        return "absent"
    gone = record.state in {"starting", "ready", "draining"} and not record.alive
    return "dead" if gone else record.state


def _states(pairs: list[tuple[Service, ServiceRecord | None]], digests: dict[str, str]) -> Iterable[Family]:
    state, ready, planned = (
        metrics.SERVICE_STATE.family(),
        metrics.SERVICE_READY.family(),
        metrics.SERVICE_AS_PLANNED.family(),
    )
    restarts, started, since = (
        metrics.SERVICE_RESTARTS.family(),
        metrics.SERVICE_STARTED.family(),
        metrics.SERVICE_READY_SINCE.family(),
    )
    for service, record in pairs:
        now = state_of(record)
        for each in STATES:
            state.add_metric([service.name, service.kind, each], float(each == now))
        ready.add_metric([service.name, service.kind], float(now == "ready"))
        if record is None:
            continue
        restarts.add_metric([service.name], record.restarts)
        if record.pid is not None and record.alive:
            planned.add_metric([service.name], float(record.digest == digests.get(service.name)))
            started.add_metric([service.name], record.started_at)
            if record.ready_at is not None:
                since.add_metric([service.name], record.ready_at)
    return state, ready, planned, restarts, started, since


def _starts(pairs: list[tuple[Service, ServiceRecord | None]], state_dir: str) -> Iterable[Family]:
    phase, seconds, expected, progress = (
        metrics.START_PHASE.family(),
        metrics.START_SECONDS.family(),
        metrics.START_EXPECTED.family(),
        metrics.START_PROGRESS.family(),
    )
    for service, record in pairs:
        names = [
            LAUNCHING,
            *(each.name for each in phases_of(service.kind)),
            GATE,
            *([WARM_UP] if service.warm_up else []),
        ]
        history = StartHistory(state_dir, service.name)
        usual = {name: history.expected_s(name) or 0.0 for name in names}
        total = sum(usual.values())
        if total:
            expected.add_metric([service.name], total)
        if record is None or record.state != "starting" or not record.alive:
            continue
        for name in names:
            phase.add_metric([service.name, name], float(name == record.phase))
        seconds.add_metric([service.name], seconds_since(record.started_at))
        if total and record.phase in usual:
            before = sum(usual[name] for name in names[: names.index(record.phase)])
            within = min(seconds_since(record.phase_at), usual[record.phase])
            progress.add_metric([service.name], (before + within) / total)
    return phase, seconds, expected, progress


def _gates(pairs: list[tuple[Service, ServiceRecord | None]]) -> Family:
    family = metrics.GATE_PASSED.family()
    for service, record in pairs:
        for check, passed in (record.checks if record else {}).items():
            family.add_metric([service.name, check], float(passed))
    return family


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
