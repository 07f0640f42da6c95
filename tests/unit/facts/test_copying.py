"""One process copying from another."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from dsv41_serving.facts.copying import _read_memory, _run_in_child, _take_descriptor, try_copying

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 2**22 + 1  # above the largest pid there can be


def test_both_calls_are_tried_for_real() -> None:
    """Allowed on a plain machine, refused where Yama or a filter says so; never an exception."""
    found = try_copying()
    assert found.pidfd_getfd in {"ok", os.strerror(errno.EPERM), "killed by SIGSYS"}
    assert found.process_vm_readv in {"ok", os.strerror(errno.EPERM), "killed by SIGSYS"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask for another user; enable with: sudo make test-unit")
def test_root_asks_as_the_user_of_the_service() -> None:
    """Root may do anything, so an answer of its own would say nothing."""
    found = try_copying("nobody")
    own = try_copying()
    assert found.user == "nobody"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if own.pidfd_getfd == own.process_vm_readv == "ok":
        expected = "ok" if not scope.exists() or scope.read_text().strip() == "0" else os.strerror(errno.EPERM)
        assert {found.pidfd_getfd, found.process_vm_readv} == {expected}


def test_a_refusal_is_named() -> None:
    assert _run_in_child(lambda: _read_memory(LIBC, NOBODY, 0)) == os.strerror(errno.ESRCH)
    assert _run_in_child(lambda: _take_descriptor(LIBC, NOBODY, 0)) in {
        os.strerror(errno.EINVAL),
        os.strerror(errno.ESRCH),
    }


def test_a_process_that_is_killed_for_the_call_says_by_what() -> None:
    def end() -> int:
        os.kill(os.getpid(), 31)
        return 0

    assert _run_in_child(end) == "killed by SIGSYS"
