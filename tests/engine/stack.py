"""Drive the real stack through its command line, as a person would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from dsv41_serving.facts import find_listener
from dsv41_serving.run.record import ServiceRecord


def _choose_ports() -> dict[str, int]:
    """Return a block of ports that nothing listens on now, so that two test runs on one machine do not meet.

    All of them lie below what the kernel hands to outgoing connections, one of which would take a port while an engine loads.
    Where a run begins to look depends on its pid: engines take a minute until they listen, and another run that starts
    meanwhile sees the block free.
    """
    blocks = [*range(10000, 30000, 1000)]
    first = os.getpid() % len(blocks)
    for base in (*blocks[first:], *blocks[:first]):
        ports = {
            "engines.prefill.port": base + 100,
            "engines.prefill.bootstrap_port": base + 198,
            "engines.decode.port": base + 200,
            "router.port": base + 1,
            "router.metrics_port": base + 91,
            "monitoring.exporter_port": base + 92,
        }
        if not any(find_listener(port) for port in ports.values()):
            return ports
    raise RuntimeError("every block of test ports is taken")


PORTS = _choose_ports()
MODEL = "deepseek-v4.1-flash"
START_TIMEOUT_S = 400.0
BUSY = 4.0


@dataclass
class StackUnderTest:
    """One node description with a state directory and ports of its own."""

    state_dir: Path
    overrides: list[str] = field(default_factory=list)

    @property
    def settings(self) -> list[str]:
        """What differs from the embedded profile, as KEY=VALUE."""
        ports = [f"{key}={value}" for key, value in PORTS.items()]
        return [*ports, f'node.state_dir="{self.state_dir}"', *self.overrides]

    @property
    def command(self) -> list[str]:
        options = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "dsv41_serving", "--profile", "embedded", *options]

    def run(self, *verb: str, timeout: float = START_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.command, *verb], capture_output=True, text=True, timeout=timeout, check=False)

    def spawn(self, *verb: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.command, *verb], **options)

    def up(self) -> str:
        done = self.run("up", "--detach")
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{self.logs()}"
        return done.stdout

    def down(self) -> str:
        done = self.run("down")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def check_contract(self, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit code of `contract check` and its clauses by name."""
        done = self.run("contract", "check", "--json", *arguments, timeout=2 * START_TIMEOUT_S)
        assert done.stdout, done.stderr
        return done.returncode, {row["clause"]: row for row in json.loads(done.stdout)["clauses"]}

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["service"]: row for row in json.loads(self.run("status", "--json").stdout)}

    def record(self, service: str) -> ServiceRecord:
        text = (self.state_dir / "run" / f"service-{service}.json").read_text()
        return ServiceRecord.model_validate_json(text)

    def stack_pid(self) -> int:
        return int(json.loads((self.state_dir / "run" / "up.json").read_text())["pid"])

    def stack_state(self) -> str:
        return str(json.loads((self.state_dir / "run" / "up.json").read_text())["state"])

    def logs(self) -> str:
        logs = sorted((self.state_dir / "log").glob("*.log"))
        parts = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs]
        return "\n".join(parts)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORTS['router.port']}"

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, **options)

    def metric(self, service: str, name: str) -> float:
        port = PORTS[f"engines.{service}.port"]
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
        )

    def kill(self, service: str) -> int:
        pid = self.record(service).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    """Poll `condition` until it holds; fail with `what` when it never does.

    `timeout_s` is ample on a quiet machine; one that runs other tests as well gets `BUSY` times as much.
    """
    timeout_s *= BUSY
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"within {timeout_s:.0f} s: {what}")


def processes_of(records: list[ServiceRecord]) -> list[str]:
    """Return 'pid name' of every process that still belongs to a recorded session."""
    sessions = {str(record.pid) for record in records}
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, _parent, _group, session = rest.split()[:4]
        if session in sessions and state not in "ZX":
            alive.append(head)
    return alive


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def listening_ports() -> set[int]:
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                ports.add(int(local.rsplit(":", 1)[1], 16))
    return ports & set(PORTS.values())
