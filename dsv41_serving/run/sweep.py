"""Remove what a service leaves when it is killed: processes, shared memory, its temporary directory.

Run as a program it is the guard of one `dsv41 up`: it waits for the end of its standard input, which only that process
holds open, and then sweeps. So a killed `dsv41 up` leaves nothing behind either.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from dsv41_serving.facts import read_process
from dsv41_serving.run.record import Records, ServiceRecord, current_boot
from dsv41_serving.run.session import kill_session, session_members

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's place for POSIX shared memory
_PREFIX = f"{SHARED_MEMORY}/"
_ENDING_S = 5.0
_POLL_S = 0.02


def shared_memory_of(session: int) -> set[str]:
    """Return the names of the POSIX shared-memory segments that processes of `session` have mapped."""
    names: set[str] = set()
    for pid in session_members(session):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                path = line.partition("/")[1] + line.partition("/")[2]
                if path.startswith(_PREFIX) and not path.endswith(" (deleted)"):
                    names.add(path.removeprefix(_PREFIX))
    return names


def sweep_service(record: ServiceRecord) -> int:
    """End what is left of a recorded service and remove its files; return the number of processes ended.

    A session is ours while its leader is the recorded process, or is gone: a session id is not given away while a member
    lives. When the leader's pid has become another process, nothing is touched. Of an earlier boot only files are left.
    A service that somebody still looks after is theirs.
    """
    if record.supervised:
        return 0
    ended = 0
    if record.pid is not None and record.start_ticks is not None and record.boot == current_boot():
        leader = read_process(record.pid)
        if leader is not None and leader.start_ticks != record.start_ticks:
            return 0
        if session_members(record.pid):
            ended = kill_session(record.pid)
    remove_files(record)
    return ended


def remove_files(record: ServiceRecord) -> None:
    """Remove the shared memory and the temporary directory of a service that has ended."""
    for name in record.shared_memory:
        with suppress(OSError):
            (SHARED_MEMORY / name).unlink()
    if record.tmp_dir:
        shutil.rmtree(record.tmp_dir, ignore_errors=True)


def main(state_dir: str) -> None:
    """Wait until standard input ends, then sweep every service recorded under `state_dir`."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _ENDING_S
    for record in Records(state_dir).read_services():
        # The pipe closes a moment before the process that held it is gone.
        while record.supervised and record.pid and session_members(record.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        sweep_service(record)


if __name__ == "__main__":
    main(sys.argv[1])
