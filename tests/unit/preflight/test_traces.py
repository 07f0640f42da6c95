"""What earlier runs left is found, and the clean-up ends what is proven to be ours and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.facts import read_process
from dsv41_serving.preflight.traces import clean_up, read_traces
from dsv41_serving.run.record import Records, ServiceRecord, StackRecord, current_boot, own_start_ticks
from tests.unit.run.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHM = Path("/dev/shm")


class Sleeper:
    """A process in a session of its own, with a temporary directory and a segment of shared memory."""

    def __init__(self, directory: Path) -> None:
        self.tmp_dir = directory / "dsv41-decode-test"
        self.tmp_dir.mkdir()
        self.segment = SHM / f"dsv41-test-{uuid.uuid4().hex}"
        self.segment.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", "sglang::scheduler"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        found = read_process(self.process.pid)
        assert found is not None
        self.start_ticks = found.start_ticks

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.segment.unlink(missing_ok=True)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    running = Sleeper(tmp_path)
    yield running
    running.end()


@pytest.fixture
def record(tmp_path: Path, sleeper: Sleeper) -> Callable[..., ServiceRecord]:
    """Write the record of the sleeper, whose supervisor is gone, with changes."""

    def write(**changes: Any) -> ServiceRecord:
        now = time.time()
        values: dict[str, Any] = {
            "name": "decode",
            "kind": "decode",
            "state": "ready",
            "phase": "ready",
            "pid": sleeper.process.pid,
            "start_ticks": sleeper.start_ticks,
            "boot": current_boot(),
            "supervisor_pid": 2**22 + 1,
            "supervisor_start_ticks": 1,
            "port": 30200,
            "url": "http://127.0.0.1:30200",
            "metrics_url": "http://127.0.0.1:30200/metrics",
            "model": "m",
            "started_at": now,
            "phase_at": now,
            "tmp_dir": str(sleeper.tmp_dir),
            "shared_memory": (sleeper.segment.name,),
        }
        made = ServiceRecord(**{**values, **changes})
        Records(tmp_path).write_service(made)
        return made

    return write


def test_an_orphan_is_found_and_cleaned(tmp_path: Path, sleeper: Sleeper, record: Callable[..., ServiceRecord]) -> None:
    record()
    (left,) = read_traces(str(tmp_path)).leftovers
    assert (left.service, left.pids) == ("decode", (sleeper.process.pid,))
    assert left.shared_memory == (sleeper.segment.name,)
    assert left.directories == (str(sleeper.tmp_dir),)
    done = clean_up(str(tmp_path))
    wait_for(lambda: not sleeper.runs, "the end of the orphan")
    assert done == [
        f"decode: ended 1 processes (session {sleeper.process.pid})",
        f"decode: removed /dev/shm/{sleeper.segment.name}",
        f"decode: removed {sleeper.tmp_dir}",
    ]
    assert read_traces(str(tmp_path)).leftovers == ()
    assert Records(tmp_path).read_services() == []
    assert clean_up(str(tmp_path)) == []


def test_a_service_that_is_looked_after_is_left_alone(
    tmp_path: Path, sleeper: Sleeper, record: Callable[..., ServiceRecord]
) -> None:
    record(supervisor_pid=os.getpid(), supervisor_start_ticks=own_start_ticks())
    traces = read_traces(str(tmp_path))
    assert (traces.running, traces.leftovers) == (("decode",), ())
    assert traces.own_pids == {sleeper.process.pid}
    assert clean_up(str(tmp_path)) == []
    assert sleeper.runs
    assert sleeper.segment.exists()
    assert [each.name for each in Records(tmp_path).read_services()] == ["decode"]


def test_a_pid_that_was_given_to_another_process_is_left_alone(
    tmp_path: Path, sleeper: Sleeper, record: Callable[..., ServiceRecord]
) -> None:
    """The record says another start: whatever runs under that pid now is not ours."""
    record(start_ticks=sleeper.start_ticks - 1)
    assert read_traces(str(tmp_path)).leftovers == ()
    assert clean_up(str(tmp_path)) == []
    assert sleeper.runs
    assert sleeper.segment.exists()


def test_of_an_earlier_boot_only_files_are_removed(
    tmp_path: Path, sleeper: Sleeper, record: Callable[..., ServiceRecord]
) -> None:
    """A pid of that time means nothing now."""
    record(boot="earlier")
    (left,) = read_traces(str(tmp_path)).leftovers
    assert (left.pids, left.shared_memory) == ((), (sleeper.segment.name,))
    clean_up(str(tmp_path))
    assert sleeper.runs
    assert not sleeper.segment.exists()
    assert not sleeper.tmp_dir.exists()


def test_an_engine_nobody_recorded_is_a_stranger(tmp_path: Path, sleeper: Sleeper) -> None:
    """Named, never touched."""
    traces = read_traces(str(tmp_path))
    assert sleeper.process.pid in {each.pid for each in traces.strangers}
    assert clean_up(str(tmp_path)) == []
    assert sleeper.runs


def test_a_recorded_orphan_is_no_stranger(
    tmp_path: Path, sleeper: Sleeper, record: Callable[..., ServiceRecord]
) -> None:
    record()
    assert sleeper.process.pid not in {each.pid for each in read_traces(str(tmp_path)).strangers}


def test_a_record_of_a_dead_service_is_stale(tmp_path: Path, record: Callable[..., ServiceRecord]) -> None:
    record(pid=2**22 + 1, start_ticks=1, shared_memory=(), tmp_dir="")
    traces = read_traces(str(tmp_path))
    assert (traces.stale, traces.leftovers, traces.running) == (("decode",), (), ())
    clean_up(str(tmp_path))
    assert read_traces(str(tmp_path)).stale == ()


def test_the_record_of_a_living_stack_stays(tmp_path: Path, record: Callable[..., ServiceRecord]) -> None:
    """Orphans of one service are cleaned while `dsv41 up` runs; its own record is not."""
    record()
    stack = StackRecord(pid=os.getpid(), start_ticks=own_start_ticks(), state="ready", node="n", started_at=time.time())
    Records(tmp_path).write_stack(stack)
    assert clean_up(str(tmp_path))
    assert Records(tmp_path).read_stack() == stack


def test_nothing_is_left_of_nothing(tmp_path: Path) -> None:
    traces = read_traces(str(tmp_path / "absent"))
    assert (traces.running, traces.leftovers, traces.stale, traces.own_pids) == ((), (), (), frozenset())
