"""Benchmark ops against the engine's paths: `python -m dsv41_kernels.bench [OP ...] --out results/`.

For every production problem, in one process: the correctness gate on fresh inputs, then the kernel, then each stock path on
the same inputs. No result is written for a kernel whose gate is red. Results are appended to `<out>/<op>.jsonl`, one line per
path, with everything needed to repeat or doubt the number.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime as dt
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
from typing import Any

import torch

from dsv41_kernels import check, measure, registry
from dsv41_kernels.console import complain, say
from dsv41_kernels.op import Op, Outputs, Problem, StockUnavailableError

_INPUT_SETS = 3


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_environment(arguments: list[str], module: str = "bench") -> dict[str, Any]:
    """GPU, driver, versions, commit, command and date of a run of `dsv41_kernels.<module>`."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, check=False, capture_output=True, text=True).stdout.split("\n")[0].strip()
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
        "command": describe_command(module, arguments),
        "commit": os.environ.get("DSV41_COMMIT") or _commit(),
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "driver": driver,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "triton", "sglang", "sgl-flash-mla")},
        **({"note": note} if (note := os.environ.get("DSV41_NOTE")) else {}),
    }


def describe_command(module: str, arguments: list[str]) -> str:
    """The command line to repeat; of a path that only one machine has, the last name stays."""
    shown = [pathlib.PurePath(each).name if each.startswith("/") else each for each in arguments]
    return shlex.join(["python", "-m", f"dsv41_kernels.{module}", *shown])


def _commit() -> str | None:
    here = pathlib.Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], check=False, capture_output=True, text=True, cwd=here)
    return found.stdout.strip() if found.returncode == 0 else None


def bench_problem(op: Op, problem: Problem, roofline: measure.Roofline, *, stock: bool) -> list[dict[str, Any]]:
    """Gate and measure one problem; one record per path. A red gate gives one record with the faults and no time."""
    device = torch.device("cuda")
    cost = op.cost(problem)
    common: dict[str, Any] = {
        "op": op.name,
        "problem": problem.name,
        "sizes": dict(problem.sizes),
        "bytes": cost.bytes,
        "flops": cost.flops,
        "bound_us": round(roofline.bound_us(cost.bytes, cost.flops), 3),
    }
    reason = op.supports(torch.cuda.get_device_capability(), problem)
    if reason:
        return [{**common, "path": "kernel", "skipped": reason}]
    verdict = check.check(op, problem, device, seed=int.from_bytes(os.urandom(4), "little"))
    if not verdict.green:
        return [{**common, "path": "kernel", "red": list(verdict.faults)}]
    sets = [op.make_inputs(problem, device, seed) for seed in range(_INPUT_SETS)]
    runs = [functools.partial(op.kernel, **copy.deepcopy(inputs)) for inputs in sets]
    timing = measure.time_device(runs, capturable=True)
    records = [{**common, "path": "kernel", **dataclasses.asdict(timing), "errors": dict(verdict.errors)}]
    for path in op.stocks if stock else ():
        record = {**common, "path": path.name}
        try:
            reference: Outputs = op.reference(**copy.deepcopy(sets[0]))
            outputs = path.prepare(problem, copy.deepcopy(sets[0]))()
            record["errors"] = {
                name: check.relative_error(outputs[name], reference[name]) for name in outputs if name in reference
            }
            prepared = [path.prepare(problem, copy.deepcopy(inputs)) for inputs in sets]
            timing = measure.time_device(prepared, capturable=path.capturable)
            record |= dataclasses.asdict(timing)
        except StockUnavailableError as unavailable:
            record["skipped"] = str(unavailable)
        records.append(record)
    return records


def _describe(record: dict[str, Any]) -> str:
    line = f"{record['op']:14} {record['problem']:32} {record['path']:28}"
    if "red" in record:
        return f"{line} RED {'; '.join(record['red'])}"
    if "skipped" in record:
        return f"{line} skipped: {record['skipped']}"
    share = 100 * record["bound_us"] / record["median_us"]
    errors = " ".join(f"{name}={error:.1e}" for name, error in record["errors"].items())
    return (
        f"{line} {record['median_us']:9.1f} us ({record['p20_us']:.1f}..{record['p80_us']:.1f}) {record['mode']:5}"
        f" bound {record['bound_us']:8.2f} us = {share:5.1f} %  errors {errors}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when a gate was red, 2 without a GPU."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m dsv41_kernels.bench", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"any of {', '.join(registry.names())}")
    parser.add_argument("--out", type=pathlib.Path, help="directory of the JSON lines; without it nothing is written")
    parser.add_argument("--problem", action="append", help="only problems whose name contains this")
    parser.add_argument("--no-stock", action="store_true", help="do not run the engine's paths")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        complain("no NVIDIA GPU: the benchmark measures device time; run it on a GPU host")
        return 2
    environment = describe_environment(arguments)
    roofline = measure.measure_roofline()
    say(
        f"{environment['gpu']}, driver {environment['driver']}, torch {environment['torch']}, triton {environment['triton']}: "
        f"copy {roofline.bandwidth / 1e12:.2f} TB/s, bf16 {roofline.matmul / 1e12:.0f} TFLOP/s, floor {roofline.floor_us:.1f} us"
    )
    red = False
    for op in [registry.load(name) for name in options.ops or registry.names()]:
        for problem in op.select("production"):
            if options.problem and not any(part in problem.name for part in options.problem):
                continue
            for record in bench_problem(op, problem, roofline, stock=not options.no_stock):
                red |= "red" in record
                say(_describe(record))
                if options.out:
                    line = {**record, "roofline": dataclasses.asdict(roofline), **environment}
                    _append(options.out / f"{op.name}.jsonl", line)
    return 1 if red else 0


def _append(path: pathlib.Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
