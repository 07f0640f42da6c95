"""Starts that must not succeed say why in one line and leave nothing behind; starts in an odd order succeed all the same."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.engine.stack import MODEL, PORTS, StackUnderTest, listening_ports, processes_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41_serving.run.record import ServiceRecord


@contextmanager
def stranger_on(port: int) -> Iterator[int]:
    """Listen on `port` as somebody else; give the pid."""
    with socket.create_server(("127.0.0.1", port)):
        yield os.getpid()


def refuse(node: StackUnderTest, *verb: str) -> str:
    """Run `verb`, which must be refused as bad input; return its one line."""
    done = node.run(*verb)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("dsv41: ")]
    assert len(lines) == 1, done.stderr
    assert not (node.state_dir / "run" / "up.json").exists()
    assert not list((node.state_dir / "run").glob("service-*.json")) if (node.state_dir / "run").exists() else True
    return lines[0]


# The exporter's port is not among them: a stack whose own metrics cannot be served still serves.
@pytest.mark.parametrize("key", [key for key in PORTS if not key.startswith("monitoring.")])
def test_port_of_a_stranger_is_named_with_its_owner(node: StackUnderTest, key: str) -> None:
    port = PORTS[key]
    with stranger_on(port) as pid:
        line = refuse(node, "up", "--detach")
    assert f"port {port} is in use by pid {pid}" in line


def test_missing_model_directory(node: StackUnderTest, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    node.overrides = [f'model.path="{absent}"']
    assert str(absent) in refuse(node, "up", "--detach")
    node.overrides = []


def test_truncated_model_directory(node: StackUnderTest, tmp_path: Path, checkpoint: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    weights = damaged / "model.safetensors"
    with weights.open("r+b") as stream:
        stream.truncate(weights.stat().st_size // 2)
    node.overrides = [f'model.path="{damaged}"']
    line = refuse(node, "up", "--detach")
    node.overrides = []
    assert "model.safetensors" in line


def test_too_little_memory_says_how_much_is_missing(node: StackUnderTest) -> None:
    node.overrides = ["memory.host_bytes_per_engine=900_000_000_000_000"]
    line = refuse(node, "up", "--detach")
    node.overrides = []
    assert "short" in line
    assert "host memory" in line


def test_refused_flag_says_why(node: StackUnderTest) -> None:
    node.overrides = ['engine.args.chat-template="x.jinja"']
    line = refuse(node, "up", "--detach")
    node.overrides = []
    assert "bypasses" in line


def test_engine_that_cannot_start_is_reported_with_its_own_last_error(node: StackUnderTest) -> None:
    node.overrides = ['engine.args.attention-backend="no-such-backend"']
    done = node.run("up", "--detach")
    node.overrides = []
    assert done.returncode == 1
    assert "ended with status" in done.stderr
    assert "no-such-backend" in done.stderr
    assert listening_ports() == set()
    node.down()


def test_router_started_first_waits_and_serves_and_a_running_role_is_not_started_twice(
    node: StackUnderTest, tmp_path: Path
) -> None:
    """Three `dsv41 run`, as systemd would: the router first, with a socket of the service manager for each."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    said = {name: NotifySocket(tmp_path / f"{name}.sock") for name in ("router", "prefill", "decode")}
    outputs = {name: (tmp_path / f"{name}.out").open("wb") for name in said}
    try:
        for name in ("router", "prefill", "decode"):
            environment = {**os.environ, "NOTIFY_SOCKET": str(said[name].path), "WATCHDOG_USEC": "4000000"}
            running[name] = node.spawn("run", name, stdout=outputs[name], stderr=subprocess.DEVNULL, env=environment)
            if name == "router":
                wait_until(lambda: said["router"].has("STATUS=waiting"), 60, "the router says that it waits")
        for name in ("prefill", "decode", "router"):
            wait_until(lambda name=name: said[name].has("READY=1"), 240, f"{name} is ready")
        assert said["prefill"].index("READY=1") > said["prefill"].index("STATUS=loading weights")
        assert said["prefill"].has("EXTEND_TIMEOUT_USEC=180000000")
        reply = httpx.post(
            f"{node.url}/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8},
            timeout=120,
        )
        assert reply.status_code == 200
        wait_until(lambda: said["decode"].has("WATCHDOG=1"), 30, "the watchdog is fed")
        twice = node.run("run", "prefill")
        assert twice.returncode == 2
        assert f"port {PORTS['engines.prefill.port']} is in use by pid {node.record('prefill').pid}" in twice.stderr
        records = [node.record(name) for name in running]
        for name in ("router", "prefill", "decode"):
            running[name].send_signal(signal.SIGTERM)
            assert running[name].wait(60) == 0
            assert said[name].has("STOPPING=1")
        assert processes_of(records) == []
    finally:
        for process in running.values():
            process.kill()
        for stream in outputs.values():
            stream.close()
    assert b"Load weight begin" in (tmp_path / "prefill.out").read_bytes()


def test_interrupted_foreground_up_takes_the_start_back(node: StackUnderTest) -> None:
    process = node.spawn("up", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    records: list[ServiceRecord] = []

    def loading() -> bool:
        records[:] = [node.record(name) for name in ("prefill", "decode") if _has_record(node, name)]
        return any(record.phase != "importing" and record.state == "starting" for record in records)

    wait_until(loading, 120, "an engine is loading")
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 0, output
    assert "loading weights" in output
    assert processes_of(records) == []
    assert listening_ports() == set()


class NotifySocket:
    """The service manager's end of sd_notify."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)  # noqa: FBT003
        self._lines: list[str] = []

    def _read(self) -> list[str]:
        while True:
            try:
                self._lines += self._socket.recv(65536).decode().split("\n")
            except BlockingIOError:
                return self._lines

    def has(self, start: str) -> bool:
        return any(line.startswith(start) for line in self._read())

    def index(self, start: str) -> int:
        return next(i for i, line in enumerate(self._read()) if line.startswith(start))


def _has_record(node: StackUnderTest, name: str) -> bool:
    return (node.state_dir / "run" / f"service-{name}.json").exists()
