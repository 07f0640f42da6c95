"""Ask a Prometheus every query of every panel, as Grafana would, and say which have no answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsv41_serving.dashboards.panel import Board, Panel, Query

POINTS = 300
"""How many points Grafana asks for on a panel of usual width."""
TIMEOUT_S = 30.0
_VARIABLE = re.compile(r"\$\{?(\w+)(?::\w+)?\}?")
# Drawn over time; every other kind asks for one moment.
_OVER_TIME = frozenset({"lines", "stack", "heatmap"})


@dataclass(frozen=True)
class Answer:
    """What Prometheus said to one query."""

    board: str
    panel: str
    legend: str
    expr: str
    """With every variable replaced."""
    series: int
    """Series with at least one value that is a number."""
    seconds: float
    problem: str = ""
    """Prometheus's own words when it refused the query."""

    @property
    def alive(self) -> bool:
        """Whether the panel would draw something for this query."""
        return self.series > 0

    @property
    def where(self) -> tuple[str, str, str]:
        """The query's place: board, panel, legend."""
        return (self.board, self.panel, self.legend)


def queries(boards: Iterable[Board]) -> Iterator[tuple[Board, Panel, Query]]:
    """Yield every query with its panel and board."""
    for board in boards:
        for panel in board.panels:
            for query in panel.queries:
                yield board, panel, query


def fill_in(expr: str, *, step_s: float, scrape_s: float, range_s: float, node: str = ".*") -> str:
    """Replace Grafana's variables as its Prometheus data source does. Raises KeyError for a variable that no board defines."""
    values = {
        "node": node,
        "__rate_interval": f"{max(step_s + scrape_s, 4 * scrape_s):g}s",
        "__interval": f"{step_s:g}s",
        "__range": f"{range_s:g}s",
    }
    return _VARIABLE.sub(lambda match: values[match[1]], expr)


def ask_panels(
    boards: Iterable[Board], url: str, *, range_s: float = 300, scrape_s: float = 5, end: float | None = None
) -> list[Answer]:
    """Ask the Prometheus at `url` every query for the `range_s` seconds before `end` (Unix seconds, default now).

    Raises InputError when nobody answers at `url`.
    """
    until = time.time() if end is None else end
    step_s = max(range_s / POINTS, scrape_s)
    answers = []
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        for board, panel, query in queries(boards):
            expr = fill_in(query.expr, step_s=step_s, scrape_s=scrape_s, range_s=range_s)
            params: dict[str, str | float]
            if panel.kind in _OVER_TIME:
                path = "/api/v1/query_range"
                params = {"query": expr, "start": until - range_s, "end": until, "step": step_s}
            else:
                path, params = "/api/v1/query", {"query": expr, "time": until}
            started = time.perf_counter()
            try:
                body: dict[str, Any] = client.get(path, params=params).json()
            except (httpx.TransportError, ValueError) as error:
                raise InputError(
                    f"no Prometheus answers ({error})", where=url, remedy="name its address with --prometheus"
                ) from error
            seconds = time.perf_counter() - started
            series = _count(body["data"]["result"]) if body["status"] == "success" else 0
            answers.append(
                Answer(board.uid, panel.title, query.legend, expr, series, seconds, problem=body.get("error", ""))
            )
    return answers


def _count(result: list[dict[str, Any]]) -> int:
    """Count the series in which a number is; NaN draws nothing."""
    return sum(
        any(value != "NaN" for _, value in row.get("values") or [row.get("value", (0, "NaN"))]) for row in result
    )
