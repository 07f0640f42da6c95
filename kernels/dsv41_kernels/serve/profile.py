"""Which kernels a decode step spends its time in, read from the engine's own profiler."""

from __future__ import annotations

import collections
import gzip
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from dsv41_kernels.serve import workload

if TYPE_CHECKING:
    import pathlib

    from dsv41_kernels.serve.server import Server

_STEPS = 12
_KEPT = 25
_NAME_LENGTH = 80


def profile_decode(server: Server, length: int, directory: pathlib.Path) -> dict[str, Any] | None:
    """Kernel times of a few decode steps of one request after `length` tokens; None when the engine wrote no trace.

    `us_per_step` is the sum of kernel times over the steps, `launches_per_step` their number, `largest` the kernels that took most
    as [name, microseconds per step, launches per step].
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
            return summarise(json.loads(gzip.decompress(traces[-1].read_bytes())))
        time.sleep(1)
    return None


def summarise(trace: dict[str, Any]) -> dict[str, Any]:
    """Sum the kernels of a profiler trace of `_STEPS` steps."""
    microseconds: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            name = event["name"][:_NAME_LENGTH]
            microseconds[name] += event["dur"]
            launches[name] += 1
    return {
        "steps": _STEPS,
        "us_per_step": round(microseconds.total() / _STEPS, 1),
        "launches_per_step": round(launches.total() / _STEPS, 1),
        "largest": [
            [name, round(total / _STEPS, 2), round(launches[name] / _STEPS, 2)]
            for name, total in microseconds.most_common(_KEPT)
        ],
    }
