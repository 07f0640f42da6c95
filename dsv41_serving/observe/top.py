"""`dsv41 top`: the numbers an operator looks at first, in a terminal, from this node's Prometheus."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dsv41_serving.errors import InputError
from dsv41_serving.observe.prometheus import NoPrometheusError
from dsv41_serving.run.status import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from dsv41_serving.observe.prometheus import Prometheus, Sample


@dataclass(frozen=True)
class Row:
    """One line: a number, or one per service, as `show` writes it."""

    name: str
    expression: str
    show: Callable[[float], str]


def _count(value: float) -> str:
    return f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{value:.1f}/s"


def _seconds(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 60 else duration(value)  # noqa: PLR2004 a minute


def _share(value: float) -> str:
    return f"{value:.1%}"


def _speed(value: float) -> str:
    return f"{value:.3g} GB/s"


def _verdict(value: float) -> str:
    return "passed" if value else "FAILED"


ROWS: tuple[Row, ...] = (
    Row("canary", "dsv41_canary_passed", _verdict),
    Row("canary, ago", "time() - dsv41_canary_timestamp_seconds", _seconds),
    Row("requests", "dsv41:requests:rate", _rate),
    Row("errors, 5 min", "dsv41:errors:ratio5m", _share),
    Row("running", "sum by (service) (sglang:num_running_reqs)", _count),
    Row("waiting", "sum by (service) (sglang:num_queue_reqs)", _count),
    Row("prompt tokens", "dsv41:prompt_tokens:rate", _rate),
    Row("generated tokens", "dsv41:generated_tokens:rate", _rate),
    Row("first token, p50", "dsv41:ttft_seconds:p50", _seconds),
    Row("first token, p99", "dsv41:ttft_seconds:p99", _seconds),
    Row("between tokens, p50", "dsv41:itl_seconds:p50", _seconds),
    Row("between tokens, p99", "dsv41:itl_seconds:p99", _seconds),
    Row("decode step", "dsv41_step_seconds", _seconds),
    Row("from the cache", "dsv41:cache_hit:ratio", _share),
    Row("KV free", 'dsv41:kv_free:ratio{pool="full"}', _share),
    Row("KV window free", 'dsv41:kv_free:ratio{pool="swa"}', _share),
    Row("KV full in", 'dsv41_kv_exhaustion_seconds{pool="full"}', _seconds),
    Row("hand-off", "dsv41:handoff_gb_s:mean", _speed),
    Row("hand-off, of measured", "dsv41:handoff_to_baseline:ratio", _share),
)


def show_top(prometheus: Prometheus, *, once: bool, every_s: float) -> None:
    """Show the numbers of `prometheus`, once or until interrupted. Raises InputError when it does not answer at first."""
    console = Console()
    try:
        first = view(prometheus)
    except NoPrometheusError as error:
        raise InputError(
            str(error), remedy="start it with the rendered configuration, or name it: --prometheus URL"
        ) from None
    if once or not console.is_terminal:
        console.print(first)
        return
    with Live(first, console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every_s)
            try:
                live.update(view(prometheus), refresh=True)
            except NoPrometheusError as error:
                live.update(Text(str(error), style="red"), refresh=True)


def view(prometheus: Prometheus) -> RenderableType:
    """Return the numbers as they are now, and what fires. Raises NoPrometheusError."""
    table = Table(show_edge=False, pad_edge=False, show_header=False)
    table.add_column("what")
    table.add_column("value")
    for row in ROWS:
        samples = [sample for sample in prometheus.query(row.expression) if not math.isnan(sample.value)]
        if samples:
            table.add_row(row.name, ", ".join(_cell(sample, row) for sample in samples))
    firing = [alert for alert in prometheus.alerts() if alert["state"] == "firing"]
    lines = [Text(f"{a['labels'].get('severity', '')}  {a['annotations']['summary']}", style="red") for a in firing]
    return Group(table, Text(), *(lines or [Text("no alert fires", style="green")]))


def _cell(sample: Sample, row: Row) -> str:
    service = sample.labels.get("service", "")
    return f"{service} {row.show(sample.value)}".strip()
