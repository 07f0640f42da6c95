"""Record what the pinned engine, router and exporters serve under /metrics, as the reference of the metric contract.

A page shows a counter only once it has counted, so the engine is recorded idle and under load, and what its source declares
beside that (`declared.json`): a failure that did not happen here still has a name, a type and labels.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.bench.mixed_load import run_mixed_load
from dsv41_serving.contract.deployment import expect_answer
from dsv41_serving.errors import InputError
from dsv41_serving.plan.monitoring import NIXL_LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsv41_serving.plan.model import Plan
    from dsv41_serving.spec.model import NodeSpec

ROUNDS = 3
DECLARED = "declared.json"
_TYPES = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Summary": "summary"}
_PREFIXES = ("sglang:", "dsv41_")
_SOURCES = ("sglang.srt.observability", "dsv41_kernels.plugin", "dsv41_serving.sglang_plugin")
# Strings of a Rust binary follow each other without a gap: the suffix is where a name ends.
_ROUTER_NAME = re.compile(rb"smg_[a-z0-9_]+?_(?:total|seconds)(?![a-z]*_total|[a-z]*_seconds)")
# Labels that every engine metric carries; the scheduler's have a rank, those of the API server have none.
_BASE_LABELS = ("model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank")
# Of the node exporter's hundreds of families, those that a node of this kind is judged by.
_NODE_FAMILIES = re.compile(
    r"node_(boot_time|cpu_seconds|disk_(io_time|read_bytes|written_bytes)|filesystem_(avail|size)_bytes|load1|load5|"
    r"memory_(MemTotal|MemAvailable|MemFree|Buffers|Cached|Mlocked|HugePages_Total|HugePages_Free|Hugepagesize|numa_[a-zA-Z_]+|Shmem)|"
    r"network_(receive|transmit)_bytes|time_seconds|vmstat_(oom_kill|pgmajfault|numa_[a-z_]+))"
)

_PROMETHEUS_FAMILIES = re.compile(r"prometheus_(rule|notifications|target|tsdb_head_(series|chunks)|config|build)")
_KEPT = {"node": _NODE_FAMILIES, "prometheus": _PROMETHEUS_FAMILIES}


@dataclass(frozen=True)
class Target:
    """One page: `name` is its file, `url` where it is served."""

    name: str
    url: str


def targets_of(plan: Plan, spec: NodeSpec) -> tuple[Target, ...]:
    """Return every page of a node: engines and NIXL by kind, the router by name, exporters, Prometheus."""
    monitoring = spec.monitoring
    return (
        *(Target(engine.kind, engine.metrics_url) for engine in plan.engines),
        *(Target(f"nixl-{engine.kind}", engine.nixl_url) for engine in plan.engines if engine.nixl_url),
        Target(f"router-{spec.router.kind}", plan.router.metrics_url),
        Target("exporter", f"http://127.0.0.1:{monitoring.exporter_port}/metrics"),
        Target("node", f"http://127.0.0.1:{monitoring.node_exporter_port}/metrics"),
        Target("prometheus", f"http://127.0.0.1:{monitoring.prometheus_port}/metrics"),
    )


async def record_pages(
    plan: Plan, targets: tuple[Target, ...], directory: Path, say: Callable[[str], None], *, rounds: int = ROUNDS
) -> None:
    """Write `NAME-idle.prom`, then, while a mixed load runs, `NAME-load.prom` of every target, and `declared.json`.

    A page that is not served is said and left as it is. Raises InputError when the router does not answer.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    async with httpx.AsyncClient(timeout=30.0) as client:
        await expect_answer(client, plan.router.url)
        await _record(client, targets, directory, "idle", say)
        load = asyncio.create_task(run_mixed_load(plan.router.url, plan.served_model_name, rounds))
        # The first requests show how counters begin; the page is taken while the last are still running.
        while not load.done():
            await asyncio.sleep(1.0)
            if not load.done():
                await _record(client, targets, directory, "load", lambda _: None)
        try:
            say(f"sent {load.result()} requests")
        except ExceptionGroup as group:
            raise InputError(
                f"the load could not be sent ({type(group.exceptions[0]).__name__})",
                where=plan.router.url,
                remedy="look what became of it: `dsv41 status`",
            ) from None
    declared = declared_metrics()
    (directory / DECLARED).write_text(json.dumps(declared, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    say(f"{len(declared)} metrics are declared in the engine's source")


async def _record(
    client: httpx.AsyncClient, targets: tuple[Target, ...], directory: Path, when: str, say: Callable[[str], None]
) -> None:
    for target in targets:
        try:
            response = await client.get(target.url)
            response.raise_for_status()
        except httpx.HTTPError as error:
            say(f"{target.name}: not recorded, {target.url} does not answer ({type(error).__name__})")
            continue
        wanted = _KEPT.get(target.name)
        page = hide_directories(keep_families(response.text, wanted) if wanted else response.text)
        page = drop_labels(page, NIXL_LABELS["regex"]) if target.name.startswith("nixl") else page
        (directory / f"{target.name}-{when}.prom").write_text(page, encoding="utf-8")
        say(f"{target.name}: {page.count(chr(10))} lines {when}")


def keep_families(page: str, wanted: re.Pattern[str]) -> str:
    """Return the lines of `page` whose metric matches `wanted`, of file systems only the root: other mounts are private."""
    lines = []
    for line in page.splitlines():
        name = line.split(" ")[2] if line.startswith("#") else line
        if wanted.match(name) and ("mountpoint=" not in line or 'mountpoint="/"' in line):
            lines.append(line)
    return "\n".join(lines) + "\n"


def hide_directories(page: str) -> str:
    """Return `page` with the names of rule files alone: where they lay on the machine that was recorded is nobody's business."""
    return re.sub(r'"[^";]*/([^"/;]+\.yml;)', r'"\1', page)


def drop_labels(page: str, names: str) -> str:
    """Return `page` without the labels that match `names`, as a scrape with this `labeldrop` stores it."""
    without = re.sub(rf'(?<=[{{,])(?:{names})="[^"]*",?', "", page)
    return without.replace(",}", "}").replace("{}", "")


def declared_metrics() -> dict[str, dict[str, Any]]:
    """Return name -> {type, labels} of every metric that the installed engine, its plug-ins and the router can count.

    Labels are null where the source is not at hand: the router is a binary, whose strings say the names alone.
    Raises InputError when one of the packages is not installed.
    """
    found: dict[str, dict[str, Any]] = {}
    for package in _SOURCES:
        for path in sorted(_directory_of(package).rglob("*.py")):
            for name, kind, labels in _declarations(path.read_text(encoding="utf-8")):
                found[name] = {"type": kind, "labels": sorted(labels)}
    for library in sorted(_directory_of("sglang_router").glob("*.so")):
        for each in _ROUTER_NAME.findall(library.read_bytes()):
            name = each.decode()
            found.setdefault(name, {"type": _type_by_name(name), "labels": None})
    return found


def _directory_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{package} is not installed", remedy="use the environment of requirements.lock")
    return Path(spec.submodule_search_locations[0])


def _type_by_name(name: str) -> str:
    return {"total": "counter", "seconds": "histogram"}.get(name.rpartition("_")[2], "gauge")


def _declarations(source: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield (name, type, labels) of every metric constructed in `source` under a literal name."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = dict(zip(("name", "documentation", "labelnames"), node.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        name, labels = arguments.get("name"), arguments.get("labelnames")
        if called not in _TYPES or not isinstance(name, ast.Constant) or not str(name.value).startswith(_PREFIXES):
            continue
        constants = {c.value for c in ast.walk(labels) if isinstance(c, ast.Constant)} if labels is not None else set()
        inherits = labels is not None and any(isinstance(n, ast.Name | ast.Attribute) for n in ast.walk(labels))
        yield str(name.value), _TYPES[called], {*map(str, constants), *(_BASE_LABELS if inherits else ())}
