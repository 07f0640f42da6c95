"""How long the boards' queries take over 24 hours of history at a scrape every 5 seconds.

The history is built by promtool from the series that a running Prometheus has now, each going on for a day, and eight GPUs where
the node has none. Only series that the boards ask for are written: the others cost a query nothing.

    python -m dsv41_serving.bench.board_queries deploy/results/board-queries.json --like http://127.0.0.1:9090
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import httpx

from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.probe import Answer, ask_panels, queries
from dsv41_serving.errors import Dsv41Error, InputError
from dsv41_serving.exporter.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HOURS = 24
SCRAPE_S = 5
RUNS = 5
TARGET_S = 0.2
GPUS = 8
SLOWEST = 10
START_TIMEOUT_S = 300.0
_NAME = re.compile(r"\b(?:sglang:|smg_|dsv41[_:]|node_|agent_|ALERTS\b|up\b|scrape_)[\w:]*")
_COUNTER = re.compile(r"_(total|count|sum|bucket)$")
_GPU_LABELS = {"direction": ("rx", "tx"), "kind": ("corrected", "uncorrected"), "cause": ("corrected", "uncorrected")}

Series = tuple[str, tuple[tuple[str, str], ...], float]
"""Name, sorted labels, present value."""


def main() -> None:
    """Build the history, ask every query RUNS times, write the result file."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.bench.board_queries", description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--like", required=True, metavar="URL", help="Prometheus whose present series the history has.")
    options = parser.parse_args()
    command = f"{parser.prog} {options.result} --like URL"
    try:
        series = [*list_series(options.like), *gpu_series()]
        with tempfile.TemporaryDirectory(prefix="board-queries-") as directory:
            end = write_history(series, Path(directory))
            with serve(Path(directory) / "tsdb") as url:
                runs = [ask_panels(BOARDS, url, range_s=HOURS * 3600, scrape_s=SCRAPE_S, end=end) for _ in range(RUNS)]
    except Dsv41Error as error:
        sys.exit(f"dsv41: {error}")
    result = {**describe_run(command), "prometheus": prometheus_version(), **summarise(runs, len(series))}
    options.result.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result["figures"], indent=1) + "\n")


def asked_names() -> set[str]:
    """Return the name of every series that a board asks for."""
    return {name for _, _, query in queries(BOARDS) for name in _NAME.findall(query.expr)}


def list_series(url: str) -> list[Series]:
    """Return the series at `url` that the boards ask for. Raises InputError when nobody answers or there are none."""
    found: list[Series] = []
    for name in sorted(asked_names()):
        try:
            body = httpx.get(f"{url}/api/v1/query", params={"query": f'{{__name__="{name}"}}'}, timeout=30).json()
        except (httpx.TransportError, ValueError) as error:
            raise InputError(f"no Prometheus answers ({error})", where=url, remedy="start one, see --like") from error
        for row in body["data"]["result"]:
            labels = tuple(sorted((key, value) for key, value in row["metric"].items() if key != "__name__"))
            found.append((name, labels, float(row["value"][1])))
    if not found:
        raise InputError("it has none of the boards' series", where=url, remedy="let it scrape the stack first")
    return found


def gpu_series() -> list[Series]:
    """Return what the exporter serves of eight GPUs, where this node has none."""
    names = asked_names()
    found: list[Series] = []
    for metric in METRICS:
        if not metric.name.startswith("dsv41_gpu_") or metric.name not in names:
            continue
        combinations: list[dict[str, str]] = [{"gpu": str(gpu)} for gpu in range(GPUS)]
        for label in metric.labels:
            if label != "gpu":
                values = _GPU_LABELS.get(label, ("one",))
                combinations = [{**some, label: value} for some in combinations for value in values]
        for labels in combinations:
            everything = {**labels, "node": "embedded", "job": "exporter", "instance": "127.0.0.1:9641"}
            found.append((metric.name, tuple(sorted(everything.items())), 1.0))
    return found


def write_history(series: Iterable[Series], directory: Path) -> float:
    """Write a day of `series` into `directory`/tsdb with promtool; return its end in Unix seconds.

    Counters grow evenly to their present value, gauges wander around it. promtool reads one block of two hours at a time.
    """
    end = time.time() // 7200 * 7200 - 1
    start = end - HOURS * 3600
    by_name: dict[str, list[Series]] = defaultdict(list)
    for each in series:
        by_name[each[0]].append(each)
    chance = random.Random(41)  # noqa: S311 - the same history every time
    for block in range(HOURS // 2):
        path = directory / "block.om"
        with path.open("w", encoding="utf-8") as text:
            for name in sorted(by_name):
                for each in by_name[name]:
                    _write_series(text, each, start + block * 7200, start, chance)
            text.write("# EOF\n")
        done = subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(path), str(directory / "tsdb")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise InputError(
                f"promtool refuses the history: {done.stderr.strip()}", remedy="install Prometheus 2.42 or newer"
            )
    return end


def _write_series(text: TextIO, series: Series, begin: float, start: float, chance: random.Random) -> None:
    name, labels, value = series
    written = ",".join(f"{key}={json.dumps(content, ensure_ascii=False)}" for key, content in labels)
    value = value if math.isfinite(value) else 1.0
    grows = _COUNTER.search(name) is not None
    rate = max(value, 1.0) / (HOURS * 3600)
    for number in range(7200 // SCRAPE_S):
        at = begin + number * SCRAPE_S
        sample = round(rate * (at - start), 3) if grows else round(value * (1 + 0.1 * chance.random()), 6)
        text.write(f"{name}{{{written}}} {sample} {at:.0f}\n")


@contextmanager
def serve(tsdb: Path) -> Iterator[str]:
    """Run a Prometheus on the blocks in `tsdb` that scrapes nothing; yield its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tsdb.parent / "prometheus.yml"
    config.write_text("scrape_configs: []\n", encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    with (tsdb.parent / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tsdb}",
                "--storage.tsdb.retention.time=30d",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise InputError(f"Prometheus does not start: {(tsdb.parent / 'prometheus.log').read_text()[-400:]}")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=2).is_success
    except httpx.TransportError:
        return False


def prometheus_version() -> str:
    """Return the version of the Prometheus that answered."""
    done = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).split()[2]


def summarise(runs: list[list[Answer]], series: int) -> dict[str, Any]:
    """Return the size of the history and, of every query's median, the middle, the slowest and those at the top."""
    times = {
        answers[0].where: statistics.median(answer.seconds for answer in answers) for answers in zip(*runs, strict=True)
    }
    slowest = sorted(times.items(), key=lambda item: -item[1])[:SLOWEST]
    return {
        "history": {
            "series": series,
            "hours": HOURS,
            "scrape_s": SCRAPE_S,
            "samples": series * HOURS * 3600 // SCRAPE_S,
        },
        "figures": [
            {"name": "slowest query of the boards", "value": round(slowest[0][1], 4), "unit": "s", "target": TARGET_S},
            {
                "name": "median query",
                "value": round(statistics.median(times.values()), 4),
                "unit": "s",
                "target": TARGET_S,
            },
        ],
        "queries": len(times),
        "with_data": sum(answer.alive for answer in runs[0]),
        "runs": RUNS,
        "slowest": [{"query": " / ".join(where), "seconds": round(seconds, 4)} for where, seconds in slowest],
    }


if __name__ == "__main__":
    main()
