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
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from dsv41_serving.observe.prometheus import Prometheus


ERRORS_MANY = 0.01
FREE_LITTLE = 0.1
FULL_SOON_S = 600.0
SEVERITIES = ("page", "ticket", "info")
_STYLES = {"page": "bold red", "ticket": "yellow", "info": "dim"}


@dataclass(frozen=True)
class Row:
    """One line: a number, or one per service, as `show` writes it."""

    name: str
    expression: str
    show: Callable[[float], str]
    bad: Callable[[float], bool] | None = None
    """Whether a value is one to look at: it is drawn in red."""


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
    Row("canary", "dsv41_canary_passed", _verdict, bad=lambda passed: not passed),
    Row("canary, ago", "time() - dsv41_canary_timestamp_seconds", _seconds),
    Row("requests", "dsv41:requests:rate", _rate),
    Row("errors, 5 min", "dsv41:errors:ratio5m", _share, bad=lambda share: share > ERRORS_MANY),
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
    Row("KV free", 'dsv41:kv_free:ratio{pool="full"}', _share, bad=lambda free: free < FREE_LITTLE),
    Row("KV window free", 'dsv41:kv_free:ratio{pool="swa"}', _share, bad=lambda free: free < FREE_LITTLE),
    Row("KV full in", 'dsv41_kv_exhaustion_seconds{pool="full"}', _seconds, bad=lambda left: left < FULL_SOON_S),
    Row("hand-off", "min by (node, service) (dsv41:nixl_gb_s:mean) or on (node) dsv41:handoff_gb_s:mean", _speed),
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
    """Return what fires and the numbers as they are now, one column for each service. Raises NoPrometheusError.

    What fires stands on top: whatever a small terminal cuts off, it is not that.
    """
    answers = {row: [each for each in prometheus.query(row.expression) if not math.isnan(each.value)] for row in ROWS}
    services = sorted({each.labels.get("service", "") for found in answers.values() for each in found} - {""})
    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 3, 0, 0))
    table.add_column("", no_wrap=True)
    for service in ("", *services):
        table.add_column(service, justify="right", no_wrap=True, header_style="dim")
    for row, found in answers.items():
        by_service = {each.labels.get("service", ""): each.value for each in found}
        if by_service:
            table.add_row(row.name, *(_cell(by_service.get(service), row) for service in ("", *services)))
    return Group(_headline(prometheus), *_fires(prometheus), Text(), table)


def _headline(prometheus: Prometheus) -> Text:
    """Return node, release and time of day: an old screen must not look like a live one."""
    info = prometheus.query("dsv41_release_info")
    names = [f"{each.labels.get('node', '')} {each.labels.get('release', '')}" for each in info]
    return Text("  ".join([*names, time.strftime("%H:%M:%S")]), style="dim", no_wrap=True, overflow="ellipsis")


def _fires(prometheus: Prometheus) -> Iterator[Text]:
    """Yield a line for each alert that fires, pages first."""
    firing = [alert for alert in prometheus.alerts() if alert["state"] == "firing"]
    for alert in sorted(firing, key=lambda alert: SEVERITIES.index(alert["labels"].get("severity", SEVERITIES[-1]))):
        severity, name = alert["labels"].get("severity", ""), alert["labels"]["alertname"].removeprefix("Dsv41")
        text = f"{severity:<7}{name}: {alert['annotations'].get('summary', '')}"
        yield Text(text, style=_STYLES.get(severity, ""), no_wrap=True, overflow="ellipsis")
    told = "dsv41 explain NAME says what to do" if firing else "no alert fires"
    yield Text(told, style="dim" if firing else "green")


def _cell(value: float | None, row: Row) -> Text:
    if value is None:
        return Text()
    return Text(row.show(value), style="bold red" if row.bad is not None and row.bad(value) else "")
