"""Measure the embedded stack against its targets: start, idle cost, memory, first token, stop, and what is left behind.

`make measure` runs this on an otherwise idle machine, writes the result file and the table in the README.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.errors import Dsv41Error, InputError
from dsv41_serving.facts import read_listeners
from dsv41_serving.run.record import Records, ServiceRecord
from dsv41_serving.run.session import session_members
from dsv41_serving.run.sweep import SHARED_MEMORY
from dsv41_serving.spec import load_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

STARTS = 3
IDLE_S = 30.0
PROMPTS = 10
MARKER = "<!-- figures: deploy/results/embedded.json -->"
END_MARKER = "<!-- /figures -->"


@dataclass(frozen=True)
class Figure:
    """One figure against its target. `value` is the median of `samples`, or the worst where that is what counts."""

    name: str
    value: float
    unit: str
    target: float
    samples: list[float]

    @property
    def met(self) -> bool:
        """Whether the value is at or below the target."""
        return self.value <= self.target


def main() -> None:
    """Measure and write the result file; with --readme also its table."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.bench.embedded", description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--readme", type=Path)
    options = parser.parse_args()
    try:
        figures = measure()
    except Dsv41Error as error:
        sys.exit(f"dsv41: {error}")
    result = {
        **describe_run(f"make measure  # {parser.prog} {options.result}"),
        "figures": [asdict(f) for f in figures],
    }
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.readme:
        text = options.readme.read_text(encoding="utf-8")
        options.readme.write_text(insert_table(text, result), encoding="utf-8")
    sys.stdout.write(figures_table(result) + "\n")


def measure() -> list[Figure]:
    """Start and stop the stack STARTS times and return the figures. Raises InputError when it is already running."""
    spec = load_spec(profile="embedded").spec
    records = Records(spec.node.state_dir)
    running = records.read_stack()
    if running is not None and running.alive:
        raise InputError("the embedded stack is running", where=spec.node.state_dir, remedy="`make down` first")
    starts, stops, cpu, memory, tokens, leftovers = [], [], [], [], [], []
    for _ in range(STARTS):
        segments, ports = _shared_memory(), _listening()
        starts.append(_timed("up", "--detach"))
        services = records.read_services()
        url = next(record.url for record in services if record.kind == "router")
        first_token_s(url, spec.contract.served_model_name)
        tokens += [first_token_s(url, spec.contract.served_model_name) for _ in range(PROMPTS)]
        cpu += idle_shares([record for record in services if record.kind != "router"])
        stack = records.read_stack()
        memory.append(resident_gib([*services], stack.pid if stack else None))
        stops.append(_timed("down"))
        left = sum(len(session_members(record.pid)) for record in services if record.pid)
        leftovers.append(left + len(_shared_memory() - segments) + len(_listening() - ports))
    return [
        _figure("warm `make up` to a passed gate", starts, "s", 90),
        _figure("idle CPU of one engine, share of a core", cpu, "%", 10, worst=True),
        _figure("memory of the whole stack (PSS)", memory, "GiB", 8, worst=True),
        _figure("first token of a short prompt, warm", tokens, "s", 1),
        _figure("`make down`, idle", stops, "s", 30),
        _figure("processes, ports and shared memory left after `make down`", leftovers, "", 0, worst=True),
    ]


def first_token_s(url: str, model: str) -> float:
    """Return the seconds from sending a short prompt to the first piece of the answer, through the router."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Say hello to number {time.monotonic_ns() % 100000}."}],
        "max_tokens": 8,
        "stream": True,
        "chat_template_kwargs": {"thinking": False},
    }
    began = time.monotonic()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return time.monotonic() - began
    raise InputError("the stream ended without an answer", where=url, remedy="read the logs")


def idle_shares(services: list[ServiceRecord]) -> list[float]:
    """Return the CPU each service uses while nothing is asked of it, in percent of one core."""
    before = [_cpu_seconds(record) for record in services]
    began = time.monotonic()
    time.sleep(IDLE_S)
    elapsed = time.monotonic() - began
    return [100 * (_cpu_seconds(record) - b) / elapsed for record, b in zip(services, before, strict=True)]


def resident_gib(services: list[ServiceRecord], stack_pid: int | None) -> float:
    """Return the proportional set size of every process of the stack, supervisor included, in GiB."""
    pids = [pid for record in services if record.pid for pid in session_members(record.pid)]
    pids += session_members(stack_pid) if stack_pid else []
    total_kib = 0
    for pid in set(pids):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            total_kib += sum(int(kib) for kib in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE))
    return total_kib / 2**20


def figures_table(result: dict[str, Any]) -> str:
    """Return the figures of a result as a Markdown table with its origin."""
    machine, versions = result["machine"], result["versions"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, no GPU"
    what = f"SGLang {versions['sglang']}, torch {versions['torch']}, NIXL {versions['nixl']}"
    lines = [
        f"{where}; {what}; {result['date']}.",
        "",
        "| figure | measured | target |",
        "|---|---|---|",
    ]
    for row in result["figures"]:
        figure = Figure(**row)
        miss = "" if figure.met else " (missed)"
        lines.append(
            f"| {figure.name} | {figure.value:.3g} {figure.unit}{miss} | at most {figure.target:g} {figure.unit} |".replace(
                "  ", " "
            )
        )
    return "\n".join(lines)


def insert_table(text: str, result: dict[str, Any]) -> str:
    """Return README `text` with the table of `result` between its markers."""
    head, _, rest = text.partition(MARKER)
    _, _, tail = rest.partition(END_MARKER)
    return f"{head}{MARKER}\n{figures_table(result)}\n{END_MARKER}{tail}"


def _figure(name: str, samples: Sequence[float], unit: str, target: float, *, worst: bool = False) -> Figure:
    value = max(samples) if worst else statistics.median(samples)
    return Figure(name, round(value, 3), unit, target, [round(sample, 3) for sample in samples])


def _timed(*verb: str) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "dsv41_serving", "--profile", "embedded", *verb]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(done.stderr.strip()[-500:] or "failed", where=" ".join(verb), remedy="mend that first")
    return time.monotonic() - began


def _cpu_seconds(record: ServiceRecord) -> float:
    total = 0
    for pid in session_members(record.pid) if record.pid else []:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            total += int(fields[11]) + int(fields[12])  # user and system time, proc_pid_stat(5) fields 14 and 15
    return total / os.sysconf("SC_CLK_TCK")


def _shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()}


def _listening() -> set[int]:
    return {listener.port for listener in read_listeners()}


if __name__ == "__main__":
    main()
