"""What is running on this node, as small files under `state_dir/run`: written by supervisors, read by everyone else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_process

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Plan

ServiceState = Literal["waiting", "starting", "ready", "draining", "stopped", "failed"]
StackState = Literal["starting", "ready", "recovering", "restarting", "draining", "stopped", "failed"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class ServiceRecord(_Record):
    """The last known state of one service. Times are Unix seconds."""

    name: str
    kind: str
    state: ServiceState
    phase: str
    """What it is doing, for people."""
    detail: str = ""
    pid: int | None = None
    """Main process of the service; also the id of the session that holds its whole process tree."""
    start_ticks: int | None = None
    """Start of `pid` in clock ticks since boot: pid and start_ticks together name one process."""
    boot: str = ""
    """The boot, as `current_boot` names it, in which `pid` was given."""
    supervisor_pid: int
    supervisor_start_ticks: int | None = None
    port: int
    url: str
    metrics_url: str
    model: str
    digest: str = ""
    """Hash of command and environment it was started with, as `Service.digest` makes it."""
    started_at: float
    phase_at: float
    expected_s: float | None = None
    """How long this phase took on earlier starts."""
    ready_at: float | None = None
    restarts: int = 0
    lane: str = ""
    """Kind of transport that UCX chose for what this engine hands over, from its log; empty before the first hand-off."""
    checks: dict[str, bool] = {}
    """The gate of the last start: check -> whether it passed."""
    problem: str = ""
    tmp_dir: str = ""
    """Directory for its temporary files and sockets, made for this start."""
    shared_memory: tuple[str, ...] = ()
    """Names of the POSIX shared-memory segments it holds."""

    @property
    def alive(self) -> bool:
        """Whether `pid` is still the process that was recorded."""
        return self.pid is not None and self.start_ticks is not None and is_process(self.pid, self.start_ticks)

    @property
    def supervised(self) -> bool:
        """Whether the process that started the service still runs and looks after it."""
        return self.supervisor_start_ticks is not None and is_process(self.supervisor_pid, self.supervisor_start_ticks)


class StackRecord(_Record):
    """One `dsv41 up`."""

    pid: int
    start_ticks: int
    state: StackState
    node: str
    started_at: float
    ready_at: float | None = None
    problem: str = ""

    @property
    def alive(self) -> bool:
        """Whether that `dsv41 up` still runs."""
        return is_process(self.pid, self.start_ticks)


def is_process(pid: int, start_ticks: int) -> bool:
    """Return whether `pid` runs now and is the process that started at `start_ticks`; a zombie does not run."""
    process = read_process(pid)
    return process is not None and process.start_ticks == start_ticks and process.state not in {"Z", "X"}


def current_boot() -> str:
    """Return a name for the time since the machine or the container started: pids of an earlier one mean nothing now."""
    first = read_process(1)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot_id}/{first.start_ticks if first else 'hidden'}"


def own_start_ticks() -> int:
    """Return the start of this process in clock ticks since boot."""
    process = read_process(os.getpid())
    if process is None:
        raise RuntimeError("procfs does not show this process; /proc must be mounted")
    return process.start_ticks


_R = TypeVar("_R", bound=_Record)


class Records:
    """The records of one node, in `state_dir/run`."""

    def __init__(self, state_dir: str | Path) -> None:
        """Use the records below `state_dir`; nothing is created before the first write."""
        self.directory = Path(state_dir) / "run"

    def write_service(self, record: ServiceRecord) -> None:
        """Store `record` under its name."""
        self._write(f"service-{record.name}.json", record)

    def write_stack(self, record: StackRecord) -> None:
        """Store the record of this `dsv41 up`."""
        self._write("up.json", record)

    def read_stack(self) -> StackRecord | None:
        """Return the record of the last `dsv41 up`, or None."""
        return self._read(self.directory / "up.json", StackRecord)

    def read_services(self, plan: Plan | None = None) -> list[ServiceRecord]:
        """Return all service records, in the order of `plan` when given, else by name."""
        found = [self._read(path, ServiceRecord) for path in sorted(self.directory.glob("service-*.json"))]
        records = [record for record in found if record is not None]
        if plan is not None:
            order = {service.name: index for index, service in enumerate(plan.services)}
            records.sort(key=lambda record: order.get(record.name, len(order)))
        return records

    def clear(self) -> None:
        """Forget every record, except of services that somebody still looks after."""
        kept = {f"service-{record.name}.json" for record in self.read_services() if record.supervised}
        for path in [*self.directory.glob("service-*.json"), self.directory / "up.json"]:
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _write(self, name: str, record: _Record) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".{name}.{os.getpid()}"
        temporary.write_text(record.model_dump_json(indent=1), encoding="utf-8")
        temporary.replace(self.directory / name)

    @staticmethod
    def _read(path: Path, model: type[_R]) -> _R | None:
        try:
            return model.model_validate_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None  # absent, damaged, or written by another version: nothing we may act on
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})", where=str(path), remedy="run as the user the services run as"
            ) from None


def seconds_since(moment: float) -> float:
    """Return the seconds from Unix time `moment` until now, never below 0."""
    return max(0.0, time.time() - moment)
