"""What earlier runs left on this machine, and what of it can be proven to be ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.facts import read_process
from dsv41_serving.run.record import Records, ServiceRecord, current_boot
from dsv41_serving.run.session import session_members
from dsv41_serving.run.sweep import SHARED_MEMORY, sweep_service
from dsv41_serving.transport.proof import read_proof

if TYPE_CHECKING:
    from dsv41_serving.facts.model import Process
    from dsv41_serving.transport.proof import Proof

# Titles and modules of an engine or router, whoever started it.
_ENGINE = re.compile(r"sglang(::|\.launch_server|_router)|dsv41_serving\.run\.launch_router")


@dataclass(frozen=True)
class Leftover:
    """What is left of one recorded service that nobody looks after any more."""

    service: str
    pids: tuple[int, ...]
    """Living members of its session, which is ours: the leader is the recorded process, or gone."""
    shared_memory: tuple[str, ...]
    """Names below /dev/shm."""
    directories: tuple[str, ...]
    """Temporary directories with its sockets."""

    @property
    def files(self) -> bool:
        """Whether anything but processes is left."""
        return bool(self.shared_memory or self.directories)


@dataclass(frozen=True)
class Traces:
    """Everything found."""

    running: tuple[str, ...]
    """Services that run now and are looked after."""
    own_pids: frozenset[int]
    """Processes of those services."""
    leftovers: tuple[Leftover, ...]
    strangers: tuple[Process, ...]
    """Engines and routers that no record of this node names: never touched."""
    stale: tuple[str, ...]
    """Services whose record says that they run, and that do not."""
    transport: Proof | None
    """The baseline of the hand-off."""


def read_traces(state_dir: str) -> Traces:
    """Return what is left of earlier runs of the node whose records lie in `state_dir`."""
    records = Records(state_dir).read_services()
    running = [record for record in records if record.alive and record.supervised and record.pid is not None]
    own = frozenset(pid for record in running if record.pid for pid in session_members(record.pid))
    leftovers = tuple(each for record in records if (each := _find_leftover(record)) is not None)
    known = own | {pid for each in leftovers for pid in each.pids}
    return Traces(
        running=tuple(record.name for record in running),
        own_pids=own,
        leftovers=leftovers,
        strangers=tuple(_find_strangers(known)),
        stale=tuple(
            record.name for record in records if record.state in {"starting", "ready", "draining"} and not record.alive
        ),
        transport=read_proof(state_dir),
    )


def clean_up(state_dir: str) -> list[str]:
    """End and remove what earlier runs left and what is proven to be ours; return one line for each thing done.

    A process counts as ours by the session a record names: its leader is the recorded process (pid and start time), or is
    gone while members live, in which case the kernel cannot have given the id away. Everything else stays.
    """
    records = Records(state_dir)
    done: list[str] = []
    for record in records.read_services():
        left = _find_leftover(record)
        if left is None:
            continue
        ended = sweep_service(record)
        done += [f"{record.name}: ended {ended} processes (session {record.pid})"] if ended else []
        done += [
            f"{record.name}: removed /dev/shm/{name}"
            for name in left.shared_memory
            if not (SHARED_MEMORY / name).exists()
        ]
        done += [f"{record.name}: removed {path}" for path in left.directories if not Path(path).exists()]
    stack = records.read_stack()
    if stack is None or not stack.alive:
        records.clear()
    return done


def _find_leftover(record: ServiceRecord) -> Leftover | None:
    if record.supervised:
        return None
    pids: tuple[int, ...] = ()
    if record.pid is not None and record.start_ticks is not None and record.boot == current_boot():
        leader = read_process(record.pid)
        if leader is not None and leader.start_ticks != record.start_ticks:
            return None  # the pid is somebody else's now, as in `sweep_service`
        pids = tuple(sorted(session_members(record.pid)))
    left = Leftover(
        service=record.name,
        pids=pids,
        shared_memory=tuple(name for name in record.shared_memory if (SHARED_MEMORY / name).exists()),
        directories=(record.tmp_dir,) if record.tmp_dir and Path(record.tmp_dir).exists() else (),
    )
    return left if left.pids or left.files else None


def _find_strangers(known: frozenset[int] | set[int]) -> list[Process]:
    """Return engines and routers outside `known`, one for each process tree: the parent, not its workers."""
    found: dict[int, Process] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal() and int(directory.name) not in known:
            process = read_process(int(directory.name))
            if process is not None and process.state not in {"Z", "X"} and _ENGINE.search(" ".join(process.command)):
                found[process.pid] = process
    return [found[pid] for pid in sorted(found) if found[pid].parent_pid not in found]
