"""What a result must say beside its numbers: when, where, with which versions and which command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import dsv41_serving
from dsv41_serving.facts.nvml import NvmlLibrary

PACKAGES = ("dsv41-serving", "sglang", "sglang-router", "smg", "nixl", "torch", "triton")


def describe_run(command: str) -> dict[str, Any]:
    """Return date, command, commit, versions and machine of a measurement; `load` is the one-minute load average."""
    return {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "command": command,
        "commit": _commit(),
        "versions": {"python": sys.version.split()[0], **{name: _version(name) for name in PACKAGES}},
        "gpus": _name_gpus(),
        "machine": {
            "cpu": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)"),
            "cores": os.cpu_count(),
            "memory_gib": round(int(_first_match("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) / 2**20, 1),
            "kernel": os.uname().release,
            "load": round(os.getloadavg()[0], 1),
        },
    }


def _name_gpus() -> str:
    """Return '4 x NVIDIA H200, driver 580.95.05', or '' without a GPU."""
    report = NvmlLibrary().query()
    names = sorted({gpu.name for gpu in report.gpus})
    return f"{len(report.gpus)} x {' and '.join(names)}, driver {report.driver_version}" if names else ""


def _commit() -> str:
    """Return the commit of the checkout that this package lies in; an installed one has none, wherever it is called from."""
    if shutil.which("git") is None:  # a node has a release, not a checkout
        return "unknown"
    package = Path(dsv41_serving.__file__).parent
    command = ["git", "-C", str(package), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # an installed node has no git
        return "unknown"
    top, _, commit = done.stdout.strip().partition("\n")
    # A package that was installed into somebody else's checkout is not of its commits.
    return commit if done.returncode == 0 and Path(top) == package.parent.resolve() else "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _first_match(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"))
    return found[1].strip() if found else ""
