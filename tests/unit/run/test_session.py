"""A service is a session: every process of it is found and ended, and none of it outlives its supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import read_process
from dsv41_serving.plan.model import Placement
from dsv41_serving.run.record import is_process
from dsv41_serving.run.session import kill_session, prepare_child, session_members
from tests.unit.run.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ANYWHERE = Placement(gpus=(), numa_node=None, cpus=())
# A leader, a child, and a grandchild whose parent has ended.
TREE = "sleep 300 & (sleep 300 &) ; wait"
SUPERVISOR = """
import subprocess
from dsv41_serving.plan.model import Placement
from dsv41_serving.run.session import prepare_child
anywhere = Placement(gpus=(), numa_node=None, cpus=())
child = subprocess.Popen(["sleep", "300"], start_new_session=True, preexec_fn=prepare_child(anywhere, pin=True))
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    """Start the tree in a session of its own; whatever is left of it is ended."""
    leader = subprocess.Popen(["sh", "-c", TREE], start_new_session=True)
    try:
        wait_for(lambda: len(session_members(leader.pid)) == 3 and orphan_of(leader.pid), "the tree")
        yield leader
    finally:
        for pid in session_members(leader.pid):
            os.kill(pid, signal.SIGKILL)
        leader.wait()


def orphan_of(session: int) -> int | None:
    """Return the member whose parent is none of the session."""
    members = session_members(session)
    found = {pid: process.parent_pid for pid in members if (process := read_process(pid))}
    return next((pid for pid, parent in found.items() if pid != session and parent not in found), None)


def test_members_are_found_whoever_their_parent_is(tree: subprocess.Popen[bytes]) -> None:
    """A grandchild whose parent has ended belongs to init, and still to the session."""
    orphan = orphan_of(tree.pid)
    assert orphan in session_members(tree.pid)
    assert os.getpid() not in session_members(tree.pid)
    assert session_members(os.getsid(0)) != []


def test_a_session_is_ended_as_a_whole(tree: subprocess.Popen[bytes]) -> None:
    """The number of processes ended is returned; the caller is none of them."""
    assert kill_session(tree.pid) == 3
    assert session_members(tree.pid) == []
    assert tree.wait() == -signal.SIGKILL


def test_a_session_whose_leader_has_ended_is_still_found(tree: subprocess.Popen[bytes]) -> None:
    """That is what remains after the engine's main process was killed."""
    tree.kill()
    tree.wait()
    assert len(session_members(tree.pid)) == 2
    assert kill_session(tree.pid) == 2
    assert session_members(tree.pid) == []


def test_an_empty_session_has_nothing_to_end(tree: subprocess.Popen[bytes]) -> None:
    """The second time."""
    kill_session(tree.pid)
    assert kill_session(tree.pid) == 0


def test_a_process_that_ended_is_no_member(tree: subprocess.Popen[bytes]) -> None:
    """Though it is in the table until its parent looks."""
    tree.kill()
    os.waitid(os.P_PID, tree.pid, os.WEXITED | os.WNOWAIT)
    assert tree.pid not in session_members(tree.pid)


def test_a_service_dies_with_its_supervisor() -> None:
    """Killed without a chance to clean up, `dsv41 up` leaves no engine behind."""
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        process = read_process(pid)
        assert process is not None
        supervisor.kill()
        supervisor.wait()
        wait_for(lambda: not is_process(pid, process.start_ticks), "the end of the service")


def cpus_of_child(placement: Placement, *, pin: bool) -> set[int]:
    """Return the CPUs a child may use that was prepared for `placement`."""
    command = [sys.executable, "-I", "-S", "-c", "import os; print(*os.sched_getaffinity(0))"]
    child = subprocess.run(
        command, preexec_fn=prepare_child(placement, pin=pin), capture_output=True, text=True, check=True
    )
    return {int(cpu) for cpu in child.stdout.split()}


def test_a_service_takes_the_cpus_of_its_placement() -> None:
    """Unless the service manager has placed it already."""
    allowed = os.sched_getaffinity(0)
    one = Placement(gpus=(), numa_node=None, cpus=(min(allowed),))
    assert cpus_of_child(one, pin=True) == {min(allowed)}
    assert cpus_of_child(one, pin=False) == allowed
    assert cpus_of_child(ANYWHERE, pin=True) == allowed


def policy_of_child(placement: Placement, *, pin: bool) -> str:
    """Return the memory policy of a child that was prepared for `placement`, such as 'bind:0'."""
    child = subprocess.run(
        ["cat", "/proc/self/numa_maps"],
        preexec_fn=prepare_child(placement, pin=pin),
        capture_output=True,
        text=True,
        check=True,
    )
    return child.stdout.split()[1]


@pytest.mark.skipif(
    not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA: CONFIG_NUMA=y enables the test"
)
def test_a_service_takes_the_memory_of_its_placement() -> None:
    """The policy is inherited by every rank and every allocation."""
    near = Placement(gpus=(), numa_node=0, cpus=())
    assert policy_of_child(ANYWHERE, pin=True) == "default"
    assert policy_of_child(near, pin=False) == "default"
    assert policy_of_child(near, pin=True) == "bind:0"
