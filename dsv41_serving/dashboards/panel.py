"""What a board consists of: rows of panels, each the answer to one question. Plain values; `build` turns them into Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["stat", "state", "lines", "stack", "heatmap", "bars", "table"]
"""How a panel draws: latest number, coloured word, curves, stacked areas, buckets over time, bars of now, rows of now."""
Color = Literal["green", "yellow", "orange", "red", "blue", "text"]

GRID_WIDTH = 24


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of its curves; `{{label}}` in the legend is replaced by the label's value."""

    expr: str
    legend: str
    color: Color | None = None
    """Of its curve, where it has one meaning; None leaves it to the palette."""
    right: bool = False
    """Whether its curve has an axis of its own at the right, in plain numbers: another magnitude than the others."""


@dataclass(frozen=True)
class Step:
    """From `value` upwards the panel is drawn in `color`."""

    value: float
    color: Color


@dataclass(frozen=True)
class Word:
    """What a `state` panel says for one value."""

    value: int
    text: str
    color: Color


@dataclass(frozen=True)
class Panel:
    """One question, its queries, and how to read the answer."""

    title: str
    question: str
    """What an operator asks; the first sentence of the description."""
    kind: Kind
    unit: str
    """A unit of Grafana, such as `s`, `percentunit`, `short`."""
    queries: tuple[Query, ...]
    width: int
    """Of GRID_WIDTH columns."""
    steps: tuple[Step, ...] = ()
    """Thresholds, ascending."""
    base: Color = "green"
    """Color below the first step."""
    reading: str = ""
    """How to read the panel where the title does not say it; second part of the description."""
    alerts: tuple[str, ...] = ()
    """Alerts that watch the same thing; each becomes a link to its runbook entry."""
    words: tuple[Word, ...] = ()
    bounds: tuple[float | None, float | None] = (0, None)
    """Ends of the axis; None leaves one to Grafana."""
    reach: float | None = None
    """What the axis shows at least: a flat line at zero must not lie on its threshold."""
    logarithmic: bool = False
    """Whether curves of very different size share the axis; zero has no place on it."""
    decimals: int | None = None
    empty: str = "no data"
    """What the panel says when no query has an answer."""
    says: Literal["value", "name", "both"] = "value"
    """What a `stat` says of each series."""
    height: int = 0
    """Of the panel, in grid rows; 0 takes the height of its row."""


@dataclass(frozen=True)
class Row:
    """A line of panels below one heading. Panels wrap at GRID_WIDTH."""

    title: str
    panels: tuple[Panel, ...]
    height: int = 7
    """Of every panel, in grid rows of 30 pixels and 8 of gap."""


@dataclass(frozen=True)
class Annotation:
    """Something that happened, drawn as a vertical line through every curve while `expr` has an answer."""

    name: str
    color: str
    expr: str
    text: str
    """Of one event; `{{label}}` is replaced."""


@dataclass(frozen=True)
class Board:
    """One dashboard. `uid` is its address in Grafana and its file name."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...]
    range: str = "now-1h"
    """What is shown when the board opens."""

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, in reading order."""
        return tuple(panel for row in self.rows for panel in row.panels)
