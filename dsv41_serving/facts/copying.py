"""Try what a hand-off inside one host needs: one process copying from another of the same user.

UCX's cuda_ipc and cma lanes use pidfd_getfd and process_vm_readv. A seccomp filter, Yama or a namespace that refuses
them does not stop an engine: it takes a lane fifty times slower, in silence.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Callable

_SYS_PIDFD_OPEN, _SYS_PIDFD_GETFD = 434, 438  # the same on every architecture
_PR_SET_DUMPABLE = 4
_SECRET = b"copied from another process"


class Copying(BaseModel):
    """What happened to each call between two processes that are not parent and child: `ok`, an errno, or a signal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str = ""
    """Whose processes these were; empty: those of whoever asked."""
    pidfd_getfd: str
    process_vm_readv: str


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def try_copying(user: str = "") -> Copying:
    """Try both calls from one child process to another, as `user` when root asks for one, and return what happened.

    To root nothing is refused, so that root's own answer says nothing about a service. Raises KeyError for an unknown user.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    become = _find_user(libc, user)
    secret = ctypes.create_string_buffer(_SECRET)
    read_end, write_end = os.pipe()
    owner = os.fork()
    if owner == 0:
        become()
        os.write(write_end, b"!")
        signal.pause()
        os._exit(0)
    try:
        os.read(read_end, 1)
        # Both children are copies of this process: the buffer has one address in all three.
        return Copying(
            user=user,
            pidfd_getfd=_run_in_child(lambda: _take_descriptor(libc, owner, read_end), become),
            process_vm_readv=_run_in_child(lambda: _read_memory(libc, owner, ctypes.addressof(secret)), become),
        )
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        os.close(read_end)
        os.close(write_end)


def _find_user(libc: ctypes.CDLL, user: str) -> Callable[[], object]:
    """Return what turns a child into a process of `user`, as if it had been started as one."""
    if not user:
        return lambda: None
    entry = pwd.getpwnam(user)

    def become() -> None:
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        # A process that changed its user is closed to others of that user until it runs another program.
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)

    return become


def _run_in_child(attempt: Callable[[], int], become: Callable[[], object] = lambda: None) -> str:
    """Return what `attempt` reports (0 or an errno) in a child: a filter may kill the process that makes the call."""
    child = os.fork()
    if child == 0:
        become()
        os._exit(attempt())
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.WEXITSTATUS(status)
    return "ok" if code == 0 else os.strerror(code)


def _take_descriptor(libc: ctypes.CDLL, pid: int, descriptor: int) -> int:
    handle = libc.syscall(_SYS_PIDFD_OPEN, pid, 0)
    if handle < 0 or libc.syscall(_SYS_PIDFD_GETFD, handle, descriptor, 0) < 0:
        return ctypes.get_errno()
    return 0


def _read_memory(libc: ctypes.CDLL, pid: int, address: int) -> int:
    target = ctypes.create_string_buffer(len(_SECRET))
    local = _IoVec(ctypes.addressof(target), len(_SECRET))
    remote = _IoVec(address, len(_SECRET))
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    copied = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if copied < 0:
        return ctypes.get_errno()
    return 0 if target.raw == _SECRET else 5  # EIO: something else was read
