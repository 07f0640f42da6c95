"""Which kernels a decode step spends its time in, read from the engine's own profiler: `python -m dsv41_kernels.serve.profile TRACE`.

A kernel's duration says little where streams run side by side and where a kernel is launched before its predecessor ends and waits for
it (programmatic dependent launch): durations then sum to more than the step. So every instant is also given to one kernel alone, the one
that started first of those running: these times sum to the time in which the GPU has work, and what is missing to the step is
waiting for the host.
"""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from dsv41_kernels.console import say
from dsv41_kernels.serve import workload

if TYPE_CHECKING:
    from dsv41_kernels.serve.server import Server

_STEPS = 12
_KEPT = 100
_NAME_LENGTH = 80


def profile_decode(server: Server, length: int, directory: pathlib.Path) -> dict[str, Any] | None:
    """Kernel times of a few decode steps of one request after `length` tokens; None when the engine wrote no trace.

    The record is that of `summarise`.
    """
    worker = threading.Thread(target=workload.stream, args=(server, workload.prompt(length, length), 2500))
    worker.start()
    time.sleep(2)
    body = {"output_dir": str(directory), "num_steps": _STEPS, "activities": ["GPU"]}
    server.post("/start_profile", body)
    worker.join()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        traces = sorted(directory.glob("**/*.json.gz"))
        if traces:
            time.sleep(2)
            return read_trace(traces[-1])
        time.sleep(1)
    return None


def read_trace(path: pathlib.Path) -> dict[str, Any]:
    """`summarise` the compressed trace at `path`."""
    return summarise(json.loads(gzip.decompress(path.read_bytes())))


def summarise(trace: dict[str, Any]) -> dict[str, Any]:
    """Sum the kernels of a profiler trace of `_STEPS` steps; all times are microseconds per step.

    `us_per_step` sums durations, `busy_us_per_step` is the time in which some kernel runs, `launches_per_step` counts kernels. `largest`
    lists the kernels that took most as [name, duration, launches, time given to it alone].
    """
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    durations: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    alone: collections.Counter[str] = collections.Counter()
    covered = float("-inf")
    for event in sorted(kernels, key=lambda event: float(event["ts"])):
        name, start, end = event["name"][:_NAME_LENGTH], event["ts"], event["ts"] + event["dur"]
        durations[name] += event["dur"]
        launches[name] += 1
        alone[name] += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return {
        "steps": _STEPS,
        "us_per_step": round(durations.total() / _STEPS, 1),
        "busy_us_per_step": round(alone.total() / _STEPS, 1),
        "launches_per_step": round(launches.total() / _STEPS, 1),
        "largest": [
            [name, *(round(counted[name] / _STEPS, 2) for counted in (durations, launches, alone))]
            for name, _ in durations.most_common(_KEPT)
        ],
    }


if __name__ == "__main__":
    say(json.dumps(read_trace(pathlib.Path(sys.argv[1]))))
