"""One process: who it is, and whose child."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Process, descends_from, files, read_process
from tests.fixtures.machines.build import BOOT_TIME

if TYPE_CHECKING:
    from pathlib import Path


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields(two_sockets: Path) -> None:
    """The fields of `stat` follow the last parenthesis."""
    assert read_process(4001, two_sockets) == Process(
        pid=4001,
        parent_pid=4000,
        start_ticks=5100,
        start_time=BOOT_TIME + 51.0,
        state="S",
        command=("engine: worker",),
        cgroup="/system.slice/old-engine.service",
        uid=985,
    )


def test_a_zombie_has_no_command(two_sockets: Path) -> None:
    """It is still there until its parent reaps it."""
    process = read_process(4002, two_sockets)
    assert process is not None
    assert (process.state, process.command) == ("Z", ())


def test_empty_arguments_are_kept(two_sockets: Path) -> None:
    """Arguments end in NUL; an empty one is one."""
    (two_sockets / "proc/4000/cmdline").write_bytes(b"engine\0--key\0\0")
    process = read_process(4000, two_sockets)
    assert process is not None
    assert process.command == ("engine", "--key", "")


def test_no_process_of_that_pid(two_sockets: Path) -> None:
    """None, without an exception."""
    assert read_process(4999, two_sockets) is None


@pytest.mark.parametrize("at", ["stat", "cmdline", "cgroup", "status"])
def test_a_process_that_ends_while_being_read_is_gone(
    two_sockets: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Half a process is none."""
    directory = two_sockets / "proc/4000"
    read = files.read_bytes

    def end_process_then_read(path: Path) -> bytes | None:
        if path == directory / at:
            shutil.rmtree(directory, ignore_errors=True)
        return read(path)

    monkeypatch.setattr(files, "read_bytes", end_process_then_read)
    assert read_process(4000, two_sockets) is None


def test_a_pid_given_to_another_process_while_being_read_is_gone(
    two_sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of one process is never reported with the start of another."""
    stat = two_sockets / "proc/4000/stat"
    read = files.read_bytes

    def reuse_pid_then_read(path: Path) -> bytes | None:
        if path.name == "cmdline":
            stat.write_bytes((two_sockets / "proc/4001/stat").read_bytes())
        return read(path)

    monkeypatch.setattr(files, "read_bytes", reuse_pid_then_read)
    assert read_process(4000, two_sockets) is None


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ("0::/dsv41.slice/dsv41-prefill.service", "/dsv41.slice/dsv41-prefill.service"),
        ("4:memory:/limited\n1:name=systemd:/system.slice/a.service\n0::/unified", "/unified"),
        ("4:memory:/limited\n1:name=systemd:/system.slice/a.service", "/system.slice/a.service"),
        ("4:memory:/limited", None),
    ],
)
def test_control_group(two_sockets: Path, lines: str, path: str | None) -> None:
    """The unified hierarchy counts, systemd's own where there is none."""
    (two_sockets / "proc/4000/cgroup").write_text(lines)
    process = read_process(4000, two_sockets)
    assert process is not None
    assert process.cgroup == path


@pytest.mark.parametrize(
    ("pid", "ancestor", "expected"),
    [
        (4001, 4000, True),
        (4002, 4000, True),
        (4002, 1, True),
        (4000, 4000, True),
        (4000, 4001, False),
        (820, 4000, False),
        (4999, 4000, False),
        (4999, 4999, False),  # a process that is gone descends from nobody, itself included
    ],
)
def test_descent(two_sockets: Path, pid: int, ancestor: int, *, expected: bool) -> None:
    """Parents are followed up to init."""
    assert descends_from(pid, ancestor, two_sockets) is expected


def test_descent_ends_when_pids_are_reused_into_a_loop(two_sockets: Path) -> None:
    """Parents are read one after the other, so that reuse may show a loop."""
    stat = two_sockets / "proc/4000/stat"
    stat.write_text(stat.read_text().replace(") x) S 1 ", ") x) S 4001 "))
    assert descends_from(4001, 820, two_sockets) is False
