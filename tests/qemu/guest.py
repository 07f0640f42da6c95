"""Runs inside the emulated machine: install the units, start an engine's, and print as JSON what the kernel says about it.

Only the standard library: the machine has Debian's Python. The engine is a program that answers like one, under the real
supervisor and in the real unit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

INPUT = Path("/opt/input")
UNIT = "dsv41-prefill.service"
MLOCK = """
import ctypes, mmap
buffer = mmap.mmap(-1, 64 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
print(ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(64 << 20)))
"""


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
    maps = [line.split() for line in read(f"/proc/{pid}/numa_maps").splitlines()]
    limits = {line[:26].strip(): line[26:].split() for line in read(f"/proc/{pid}/limits").splitlines()}
    return {
        "name": status.get("Name"),
        "cpus": status.get("Cpus_allowed_list"),
        "mems": status.get("Mems_allowed_list"),
        "seccomp": status.get("Seccomp"),
        "capabilities": status.get("CapEff"),
        "policies": sorted({fields[1] for fields in maps if "heap" in fields or "stack" in fields}),
        "heap_nodes": sorted(
            {part.split("=")[0] for f in maps if "heap" in f for part in f if part[:1] == "N" and "=" in part}
        ),
        "memlock": limits["Max locked memory"][:2],
        "nofile": limits["Max open files"][:2],
        "core": limits["Max core file size"][:2],
        "oom_score_adj": read(f"/proc/{pid}/oom_score_adj"),
        "cgroup": read(f"/proc/{pid}/cgroup"),
    }


def start(plan: str) -> dict[str, Any]:
    """Start the unit with the stored plan `plan`; return its state, its processes, and what it said."""
    shutil.copy(INPUT / plan, "/etc/dsv41/plan.json")
    run("systemctl", "reset-failed", UNIT)
    said = run("systemctl", "start", UNIT)
    main = int(run("systemctl", "show", "-P", "MainPID", UNIT))
    children = [int(pid) for pid in read(f"/proc/{main}/task/{main}/children").split()] if main else []
    found = {
        "said": said,
        "active": run("systemctl", "is-active", UNIT),
        "status": run("systemctl", "show", "-P", "StatusText", UNIT),
        "cpu_weight": read("/sys/fs/cgroup/dsv41.slice/dsv41-engines.slice/cpu.weight"),
        "processes": [describe(pid) for pid in (main, *children) if pid],
        "journal": run("journalctl", "--no-pager", "-o", "cat", "-u", UNIT, "-n", "40"),
        "fields": run("journalctl", "--no-pager", "-o", "json", "-n", "1", "-u", UNIT, "_COMM=python3"),
    }
    run("systemctl", "stop", UNIT)
    return found


def lock_memory(limit: str) -> str:
    """Return what mlock of 64 MiB says as the service user under a limit."""
    return run(
        "systemd-run",
        "-q",
        "--wait",
        "--pipe",
        "-p",
        "User=dsv41",
        "-p",
        f"LimitMEMLOCK={limit}",
        "python3",
        "-c",
        MLOCK,
    )


def main() -> None:
    """Do everything once and print the report."""
    shutil.copytree(INPUT / "root", "/", dirs_exist_ok=True)
    run("systemd-sysusers")
    run("systemd-tmpfiles", "--create", "dsv41.conf")
    run("systemctl", "daemon-reload")
    report: dict[str, Any] = {"bound": start("plan.json")}
    report["elsewhere"] = start("plan-node0.json")
    report["incidents"] = sorted(path.name for path in Path("/var/lib/dsv41/incidents").glob("*"))
    report["mlock"] = {limit: lock_memory(limit) for limit in ("infinity", "64K")}
    print(json.dumps(report))  # noqa: T201 - this is the report


if __name__ == "__main__":
    main()
