"""What a killed service leaves is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import read_process
from dsv41_serving.run.record import Records, own_start_ticks
from dsv41_serving.run.session import session_members
from dsv41_serving.run.sweep import SHARED_MEMORY, remove_files, shared_memory_of, sweep_service
from tests.unit.run.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsv41_serving.run.record import ServiceRecord

    Make = Callable[..., ServiceRecord]

# A service with a worker that holds a segment of shared memory, as NCCL and torch do.
SERVICE = """
import mmap, os, sys
segment = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(segment, 4096)
if os.fork() == 0:
    mapped = mmap.mmap(segment, 4096)
    os.close(segment)
    print("mapped", flush=True)
sys.stdin.read()
"""


class Service:
    """A running service with one segment of shared memory and a temporary directory."""

    def __init__(self, tmp_dir: Path) -> None:
        """Start it and wait until the segment is mapped."""
        self.segment = SHARED_MEMORY / f"dsv41-test-{uuid.uuid4().hex}"
        self.tmp_dir = tmp_dir
        (tmp_dir / "sockets").mkdir(parents=True)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SERVICE, str(self.segment)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"mapped\n"
        found = read_process(self.process.pid)
        assert found is not None
        self.start_ticks = found.start_ticks

    def record(self, make_record: Make, **changes: object) -> ServiceRecord:
        """Return the record a supervisor would have written."""
        values = {
            "state": "ready",
            "pid": self.process.pid,
            "start_ticks": self.start_ticks,
            "shared_memory": (self.segment.name,),
            "tmp_dir": str(self.tmp_dir),
        }
        return make_record(**{**values, **changes})

    def end(self) -> None:
        """End it, whatever the test has left of it."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()
        wait_for(lambda: not session_members(self.process.pid), "the end of the worker")
        self.segment.unlink(missing_ok=True)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Start a service."""
    running = Service(tmp_path / "tmp")
    yield running
    running.end()


def is_gone(service: Service) -> bool:
    """Whether processes, shared memory and temporary directory have gone."""
    return not (session_members(service.process.pid) or service.segment.exists() or service.tmp_dir.exists())


def test_the_segments_of_all_processes_are_found(service: Service) -> None:
    """Those a worker has mapped, and none of other services."""
    assert shared_memory_of(service.process.pid) == {service.segment.name}
    assert service.segment.name not in shared_memory_of(os.getsid(0))


def test_a_segment_without_a_name_is_not_listed(service: Service) -> None:
    """It goes by itself when the last process unmaps it."""
    service.segment.unlink()
    assert shared_memory_of(service.process.pid) == set()


def test_a_running_service_is_ended_and_its_files_go(service: Service, make_record: Make) -> None:
    """Both processes count."""
    assert sweep_service(service.record(make_record)) == 2
    assert is_gone(service)


def test_workers_of_a_killed_service_are_ended(service: Service, make_record: Make) -> None:
    """Their leader is gone; the session still says whose they are."""
    service.process.kill()
    service.process.wait()
    assert sweep_service(service.record(make_record)) == 1
    assert is_gone(service)


def test_a_service_that_ended_leaves_only_files(service: Service, make_record: Make) -> None:
    """They are removed, once and again."""
    service.end()
    service.segment.touch()
    assert sweep_service(service.record(make_record)) == 0
    assert is_gone(service)
    assert sweep_service(service.record(make_record)) == 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"start_ticks": 1}, id="the pid belongs to another process now"),
        pytest.param({"boot": "an earlier boot"}, id="the pid was given before the machine restarted"),
        pytest.param({"start_ticks": None}, id="the start was never recorded"),
        pytest.param({"pid": None}, id="it was never started"),
    ],
)
def test_a_process_that_is_not_provably_ours_is_never_touched(
    service: Service, make_record: Make, changes: dict[str, object]
) -> None:
    """A pid alone proves nothing."""
    assert sweep_service(service.record(make_record, shared_memory=(), **changes)) == 0
    assert service.process.poll() is None
    assert len(session_members(service.process.pid)) == 2


def test_an_orphaned_session_of_an_earlier_boot_is_never_touched(service: Service, make_record: Make) -> None:
    """A daemon whose leader has ended may have the number of a session of ours from before the restart."""
    service.process.kill()
    service.process.wait()
    assert sweep_service(service.record(make_record, boot="an earlier boot", shared_memory=())) == 0
    assert len(session_members(service.process.pid)) == 1


def test_a_service_that_somebody_looks_after_is_theirs(service: Service, make_record: Make) -> None:
    """A service manager started it, or this very `dsv41 up` still runs."""
    record = service.record(make_record, supervisor_pid=os.getpid(), supervisor_start_ticks=own_start_ticks())
    assert sweep_service(record) == 0
    assert len(session_members(service.process.pid)) == 2
    assert service.segment.exists()
    assert service.tmp_dir.exists()


def test_only_recorded_files_go(tmp_path: Path, make_record: Make) -> None:
    """An empty record removes nothing; an absent file is no fault."""
    (tmp_path / "keep").mkdir()
    remove_files(make_record())
    remove_files(make_record(shared_memory=(f"dsv41-test-{uuid.uuid4().hex}",), tmp_dir=str(tmp_path / "absent")))
    assert (tmp_path / "keep").exists()


def test_the_guard_sweeps_when_its_pipe_closes(tmp_path: Path, service: Service, make_record: Make) -> None:
    """Only `dsv41 up` holds the other end, so it closes however that process ends."""
    Records(tmp_path / "state").write_service(service.record(make_record))
    guard = subprocess.Popen(
        [sys.executable, "-m", "dsv41_serving.run.sweep", str(tmp_path / "state")], stdin=subprocess.PIPE
    )
    try:
        wait_for(lambda: b"dsv41_serving.run.sweep" in Path(f"/proc/{guard.pid}/cmdline").read_bytes(), "the guard")
        assert not is_gone(service)
        assert guard.stdin is not None
        guard.stdin.close()
        assert guard.wait() == 0
    finally:
        guard.kill()
        guard.wait()
    assert is_gone(service)
