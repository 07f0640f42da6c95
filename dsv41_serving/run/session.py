"""The process tree of a service: started as a session of its own, so that every descendant can be found and ended.

A child keeps the session of its parent when the parent dies, while its parent pid becomes 1: the session id is what still
says whose it is. The kernel does not reuse a pid while it names a session.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Placement

_PR_SET_PDEATHSIG = 1
_MPOL_BIND = 2
_SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_POLL_S = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


def prepare_child(placement: Placement, *, pin: bool) -> Callable[[], None]:
    """Return what a new process does before it becomes the service.

    It asks to be killed when its supervisor dies, so that killing `dsv41 up` leaves no engine behind, and takes the CPUs
    and the memory policy of its placement when `pin` is set (under systemd the unit owns both).
    """
    parent = os.getpid()
    cpus = set(placement.cpus) if pin else set()
    mask = 0 if placement.numa_node is None or not pin else 1 << placement.numa_node
    number = _SYS_SET_MEMPOLICY.get(os.uname().machine)

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the supervisor died between fork and here
        if cpus:
            os.sched_setaffinity(0, cpus)
        if mask and number is not None:
            nodes = ctypes.c_ulong(mask)
            _libc.syscall(number, _MPOL_BIND, ctypes.byref(nodes), ctypes.c_ulong(8 * ctypes.sizeof(nodes) + 1))

    return prepare


def session_members(session: int) -> list[int]:
    """Return the pids of all processes in session `session`, zombies left out."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            state, _parent, _group, owner = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if int(owner) == session and state not in {b"Z", b"X"}:
                members.append(int(entry.name))
    return members


def kill_session(session: int, *, patience_s: float = 5.0) -> int:
    """Kill every process of `session` and wait until they are gone; return how many there were.

    Processes forked while it runs are caught by looking again.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while members := session_members(session):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return len(killed)
