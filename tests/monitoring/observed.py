"""The embedded stack with the monitoring of its plan beside it: exporters, and a real Prometheus with the rendered files."""

from __future__ import annotations

import asyncio
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dsv41_serving.bench.mixed_load import run_mixed_load
from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.probe import fill_in, queries
from dsv41_serving.facts import find_listener
from tests.engine.stack import MODEL, PORTS, StackUnderTest, wait_until

SCRAPE_S = 1
START_TIMEOUT_S = 120.0


def free_port(start: int) -> int:
    """Return the first port from `start` that nothing listens on."""
    return next(port for port in range(start, start + 900) if not find_listener(port))


@dataclass
class ObservedStack:
    """A stack of its own, watched. `root` receives the configuration, as an installation's / would."""

    directory: Path
    overrides: tuple[str, ...] = ()
    """More values of the node file, as KEY=VALUE."""
    stack: StackUnderTest = field(init=False)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _rounds: int = 0

    def __post_init__(self) -> None:
        base = PORTS["router.port"] + 400
        self.ports = {
            "monitoring.prometheus_port": free_port(base),
            "monitoring.node_exporter_port": free_port(base + 20),
            "monitoring.alertmanager_port": free_port(base + 40),
        }
        settings = [f"{key}={port}" for key, port in self.ports.items()]
        self.stack = StackUnderTest(
            self.directory / "state", overrides=[*settings, f"monitoring.scrape_interval_s={SCRAPE_S}", *self.overrides]
        )

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def prometheus_config(self) -> Path:
        return self.root / "etc/dsv41/prometheus/prometheus.yml"

    @property
    def prometheus_url(self) -> str:
        return f"http://{self.address('prometheus')}"

    def up(self) -> None:
        """Start the stack, write its configuration, start what it describes, and wait until every target is scraped."""
        self.stack.up()
        self.write_configuration()
        self.spawn("node-exporter", "prometheus-node-exporter", f"--web.listen-address={self.address('node_exporter')}")
        self.spawn(
            "alertmanager",
            "prometheus-alertmanager",
            f"--config.file={self.root / 'etc/dsv41/alertmanager/alertmanager.yml'}",
            f"--web.listen-address={self.address('alertmanager')}",
            f"--storage.path={self.directory / 'alertmanager'}",
            "--cluster.listen-address=",
        )
        self.start_prometheus()

    def write_configuration(self) -> None:
        """Write what the plan renders for Prometheus and Alertmanager; its units are of no use here."""
        written = self.stack.run("metrics", "configure", "--to", str(self.root / "etc/dsv41"))
        assert written.returncode == 0, written.stdout + written.stderr

    def address(self, what: str) -> str:
        """Return host and port of `prometheus`, `alertmanager` or `node_exporter`."""
        return f"127.0.0.1:{self.ports[f'monitoring.{what}_port']}"

    def start_prometheus(self) -> None:
        self.spawn(
            "prometheus",
            "prometheus",
            f"--config.file={self.prometheus_config}",
            f"--web.listen-address={self.address('prometheus')}",
            f"--storage.tsdb.path={self.directory / 'tsdb'}",
            "--web.enable-lifecycle",
        )
        wait_until(self._all_scraped, START_TIMEOUT_S, f"every target is scraped; {self.targets()}")

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process that ends with this stack; its output goes to NAME.log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._processes.append(process)
        return process

    def targets(self) -> dict[str, str]:
        """Return the health of every target by job; empty while Prometheus starts."""
        with suppress(httpx.TransportError, ValueError, KeyError):
            found = httpx.get(f"{self.prometheus_url}/api/v1/targets", timeout=5).json()["data"]["activeTargets"]
            return {target["labels"]["job"]: target["health"] for target in found}
        return {}

    def _all_scraped(self) -> bool:
        targets = self.targets()
        return bool(targets) and set(targets.values()) == {"up"}

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """Return the answer to one instant query."""
        body = httpx.get(f"{self.prometheus_url}/api/v1/query", params={"query": expr}, timeout=60).json()
        assert body["status"] == "success", f"{expr}: {body}"
        result: list[dict[str, Any]] = body["data"]["result"]
        return result

    def panel(self, title: str) -> dict[str, float]:
        """Return the highest value of the last minute of each curve of a panel of the main board."""
        found: dict[str, float] = {}
        for _, panel, query in queries(BOARDS[:1]):
            if panel.title == title:
                expr = fill_in(query.expr, step_s=SCRAPE_S, scrape_s=SCRAPE_S, range_s=300)
                for row in self.ask(f"max_over_time(({expr})[1m:{SCRAPE_S}s])"):
                    curve = re.sub(r"{{(\w+)}}", lambda label, row=row: str(row["metric"].get(label[1])), query.legend)
                    found[curve] = float(row["value"][1])
        assert found, f"panel '{title}' says nothing"
        return found

    def load(self, rounds: int) -> None:
        """Put a small mixed load on the router; no call repeats the prompts of another."""
        first, self._rounds = self._rounds, self._rounds + rounds
        asyncio.run(run_mixed_load(self.stack.url, MODEL, rounds, first=first))

    def down(self) -> None:
        """End what was started here, watchers first."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self.stack.down()
