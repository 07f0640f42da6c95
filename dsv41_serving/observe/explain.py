"""`dsv41 explain ALERT`: what the runbook says, and the evidence it asks for, gathered in its order."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.canary.result import CanaryResults
from dsv41_serving.contract.watch import Watch
from dsv41_serving.observe.prometheus import NoPrometheusError, Sample
from dsv41_serving.run.status import list_problems, read_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41_serving.observe.prometheus import Prometheus
    from dsv41_serving.observe.runbook import Evidence, Section

LOG_LINES = 12
_SHOWN_SERIES = 12
_LINE_WIDTH = 300
_JOURNAL_LINES, _JOURNAL_TIMEOUT_S = 400, 10.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What is asked every few seconds says nothing about a failure.
_ROUTINE = re.compile(r'"GET /(health|metrics)[^"]*" 200')
# Labels that say nothing within one node.
_DULL = frozenset(
    {"__name__", "node", "job", "instance", "model_name", "moe_ep_rank", "pp_rank", "tp_rank", "engine_type"}
)


def explain(section: Section, prometheus: Prometheus, state_dir: str) -> Iterator[str]:
    """Yield the lines of the explanation: state of the alert, meaning, evidence, remedy. Missing evidence is a line too."""
    yield f"{section.alert}: {_state(section.alert, prometheus)}"
    yield ""
    yield section.meaning
    for evidence in section.evidence:
        yield ""
        yield f"{evidence}"
        for line in gather(evidence, prometheus, state_dir):
            yield f"    {line}"
    yield ""
    yield section.remedy


def gather(evidence: Evidence, prometheus: Prometheus, state_dir: str) -> list[str]:
    """Return what one piece of evidence says now, one line each; why it is missing where it is."""
    try:
        match evidence.kind:
            case "query":
                return show_samples(prometheus.query(evidence.argument))
            case "status":
                return _status(state_dir)
            case "canary":
                run = CanaryResults(state_dir).read()
                return run.as_lines() if run else ["the canary has not run on this node"]
            case "contract":
                return _contract(Watch(state_dir).directory / "round.json")
            case "log":
                return _log(Path(state_dir) / "log" / f"{evidence.argument}.log", evidence.argument)
    except NoPrometheusError as error:
        return [str(error)]


def show_samples(samples: list[Sample]) -> list[str]:
    """Return one line per sample, the labels that tell them apart first; what is too long is counted."""
    lines = []
    for sample in samples[:_SHOWN_SERIES]:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key not in _DULL)
        lines.append(f"{labels or 'value'}  {sample.value:.6g}")
    if len(samples) > _SHOWN_SERIES:
        lines.append(f"and {len(samples) - _SHOWN_SERIES} more")
    return lines or ["nothing"]


def _state(alert: str, prometheus: Prometheus) -> str:
    try:
        found = [each for each in prometheus.alerts() if each["labels"]["alertname"] == alert]
    except NoPrometheusError as error:
        return str(error)
    if not found:
        return "does not fire now"
    return "; ".join(
        f"{each['state']} since {each['activeAt'][:19]}: {each['annotations']['summary']}" for each in found
    )


def _status(state_dir: str) -> list[str]:
    rows = asyncio.run(read_status(state_dir))
    lines = [f"{row.service}  {row.state}, {row.phase}, pid {row.pid}, restarted {row.restarts}x" for row in rows]
    return [*lines, *list_problems(state_dir, rows)] or ["nothing runs on this node"]


def _contract(path: Path) -> list[str]:
    try:
        done = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ["the contract watch has not run on this node"]
    except ValueError:
        return [f"{path} is damaged"]
    lines = [*done["misses"], *(f"DRIFT {each}" for each in done["drift"])]
    return lines or [f"{len(done['clauses'])} clauses kept, nothing drifted"]


def _log(path: Path, service: str) -> list[str]:
    """Return the last telling lines of a service: of its log under `dsv41 up`, else of its journal."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = _journal(service)
    lines = _COLOUR.sub("", text).splitlines()
    telling = [line for line in lines if not _ROUTINE.search(line)]
    return [line[:_LINE_WIDTH] for line in telling[-LOG_LINES:]] or ["nothing but health checks"]


def _journal(service: str) -> str:
    command = [
        "journalctl",
        "--unit",
        f"dsv41-{service}",
        "--lines",
        str(_JOURNAL_LINES),
        "--output",
        "cat",
        "--no-pager",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_JOURNAL_TIMEOUT_S)
    except FileNotFoundError:
        return f"no log of {service} on this machine"
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return f"the journal cannot be read; as root: {' '.join(command)}"
    return done.stdout
