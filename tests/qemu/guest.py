"""Runs inside the machine: install the units, start the engines', ask them and the kernel, and print what they say as JSON.

Only the standard library: this is Debian's Python.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

INPUT = Path("/opt/input")
UNITS = Path("/etc/systemd/system")
# Far beyond the limit that systemd itself starts with.
POOL_MIB = "256"
STARTED = ("prefill", "decode", "exporter")
DSV41 = ("/opt/venv/bin/python", "-m", "dsv41_serving", "--plan", "/etc/dsv41/plan.json")


def run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        return str(error)


def describe(pid: int) -> dict[str, Any]:
    """Return what procfs says about one process."""
    status = dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").splitlines() if ":\t" in line)
    limits = {line[:26].strip(): line[26:].split() for line in read(f"/proc/{pid}/limits").splitlines()}
    return {
        "cpus": status["Cpus_allowed_list"],
        "mems": status["Mems_allowed_list"],
        "seccomp": status["Seccomp"],
        "capabilities": status["CapEff"],
        "memlock": limits["Max locked memory"][:2],
        "nofile": limits["Max open files"][:2],
        "core": limits["Max core file size"][:2],
        "oom_score_adj": read(f"/proc/{pid}/oom_score_adj"),
    }


def describe_unit(name: str) -> dict[str, Any]:
    """Return a unit's control group, its limits as the kernel has them, and its processes."""
    group = run("systemctl", "show", "-P", "ControlGroup", f"dsv41-{name}.service")
    directory = Path(f"/sys/fs/cgroup{group}")
    pids = [int(pid) for pid in read(f"{directory}/cgroup.procs").splitlines()]
    return {
        "cgroup": group,
        "memory.max": read(f"{directory}/memory.max"),
        "pids.max": read(f"{directory}/pids.max"),
        "processes": [describe(pid) for pid in pids],
    }


def sandbox(unit: str, command: str, **changes: str) -> str:
    """Return the text of a unit that runs `command` once in the sandbox of the service `unit` (text), some directives changed."""
    started = ("Exec", "Type=", "Restart", "Requires=", "PartOf=", "After=", "Wants=", "WatchdogSec=")
    kept = [
        line for line in unit.splitlines() if not line.startswith(started) and line.partition("=")[0] not in changes
    ]
    head, service, rest = "\n".join(kept).partition("[Service]\n")
    own = [f"{key}={value}" for key, value in changes.items()]
    return head + service + "\n".join(("Type=oneshot", f"ExecStart={command}", *own, rest)) + "\n"


def run_probe(unit: str, sandbox_of: str, *arguments: str, **changes: str) -> dict[str, str]:
    """Run probe.py in the sandbox of a unit of the plan, with some directives changed; return its result and its words."""
    command = " ".join(("/opt/venv/bin/python", "/opt/repository/tests/qemu/probe.py", *arguments))
    text = (UNITS / f"dsv41-{sandbox_of}.service").read_text()
    (UNITS / f"{unit}.service").write_text(sandbox(text, command, **changes))
    run("systemctl", "daemon-reload")
    run("systemctl", "start", unit)
    run("journalctl", "--sync")
    return {
        "result": run("systemctl", "show", "-P", "Result", unit),
        "said": run("journalctl", "-o", "cat", "--no-pager", f"_SYSTEMD_UNIT={unit}.service"),
    }


def main() -> None:
    """Do everything once and print the report."""
    shutil.copytree(INPUT / "root", "/", dirs_exist_ok=True, symlinks=True)
    run("systemd-sysusers")
    run("systemd-tmpfiles", "--create", "dsv41.conf")
    run("systemctl", "daemon-reload")
    report: dict[str, Any] = {"said": run("systemctl", "start", *(f"dsv41-{name}.service" for name in STARTED))}
    report["journal"] = run("journalctl", "--no-pager", "-o", "cat", "-u", "dsv41-*", "-n", "60")
    report["gate"] = [json.loads(run(*DSV41, "gate", name, "--json")) for name in ("prefill", "decode")]
    report["units"] = {name: describe_unit(name) for name in STARTED}
    report["weights"] = {
        name: read(f"/sys/fs/cgroup/dsv41.slice/{name}/cpu.weight")
        for name in ("dsv41-engines.slice", "dsv41-infra.slice")
    }
    entry = run("journalctl", "--no-pager", "-o", "json", "-n", "1", "-t", "dsv41-prefill")
    report["fields"] = entry
    report["metrics"] = read_metrics()
    # A plan that puts the engine where its unit does not: only the gate can know.
    shutil.copy(INPUT / "elsewhere.json", "/run/elsewhere.json")
    report["elsewhere"] = run(*DSV41[:3], "--plan", "/run/elsewhere.json", "gate", "prefill", "--json")
    run("systemctl", "stop", "dsv41-*")
    report["probes"] = {
        "engine": run_probe("probe-engine", "prefill", "sandbox", POOL_MIB),
        "router": run_probe("probe-router", "router", "sandbox", POOL_MIB),
        "short of locked memory": run_probe("probe-memlock", "prefill", "sandbox", POOL_MIB, LimitMEMLOCK="64K"),
        "without the call": run_probe("probe-call", "prefill", "sandbox", POOL_MIB, SystemCallFilter="@system-service"),
        "too large": run_probe("probe-memory", "exporter", "grow"),
    }
    print(json.dumps(report))  # noqa: T201 - this is the report


def read_metrics() -> str:
    """Return the exporter's page once it holds what is read in the background."""
    page = ""
    for _ in range(120):
        try:
            with urllib.request.urlopen("http://127.0.0.1:9641/metrics", timeout=30) as reply:
                page = reply.read().decode()
        except OSError as error:
            page = str(error)
        if "dsv41_numa_bound{" in page:
            break
        time.sleep(0.5)
    return page


if __name__ == "__main__":
    main()
