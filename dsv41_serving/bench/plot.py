"""Small charts as SVG text: lines with points, axes with round numbers, a legend. No dependency, readable in any browser. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 34, 46
_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f", "#c77d0a", "#4a4a4a")
_TICKS = 5


@dataclass(frozen=True)
class Series:
    """One line or one cloud of points."""

    name: str
    points: tuple[tuple[float, float], ...]
    line: bool = True
    dots: bool = False
    like: int | None = None
    """Number of an earlier series that this one belongs to: it takes its colour, and no line of the legend."""


def draw_chart(title: str, x_title: str, y_title: str, series: list[Series], *, legend_below: bool = False) -> str:
    """Return an SVG of `series`; axes begin at 0. An empty chart says that there is nothing.

    The legend is at the upper left, free where lines rise, or at the lower right, free where curves rise to the top.
    """
    points = [point for each in series for point in each.points]
    x_ticks = choose_ticks(max((x for x, _ in points), default=1.0))
    y_ticks = choose_ticks(max((y for _, y in points), default=1.0))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="12"'
    parts = [
        f'{head} font-family="system-ui, sans-serif" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" font-size="14" font-weight="600" fill="currentColor">{escape(title)}</text>',
        *_draw_axes(x_ticks, y_ticks, x_title, y_title),
    ]
    for number, each in enumerate(series):
        colour = _COLOURS[(number if each.like is None else each.like) % len(_COLOURS)]
        placed = [(_place_x(x, x_ticks[-1]), _place_y(y, y_ticks[-1])) for x, y in each.points]
        if each.line and len(placed) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if each.dots:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed]
        if each.like is not None:
            continue  # its colour is in the legend already
        below = sum(later.like is None for later in series[number + 1 :])
        base = _HEIGHT - _BOTTOM - 10 - 16 * below if legend_below else _TOP + 12 + 16 * number
        edge, anchor, sign = (_WIDTH - _RIGHT, "end", -1) if legend_below else (_LEFT, "start", 1)
        parts += [
            f'<rect x="{edge + sign * 16 - 6}" y="{base - 9}" width="12" height="10" fill="{colour}"/>',
            f'<text x="{edge + sign * 28}" y="{base}" text-anchor="{anchor}" fill="currentColor">{escape(each.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def choose_ticks(highest: float) -> list[float]:
    """Return about five round numbers from 0 to `highest` or just above."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    return [round(step * number, 12) for number in range(math.ceil(highest / step - 1e-9) + 1)]


def _draw_axes(x_ticks: list[float], y_ticks: list[float], x_title: str, y_title: str) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in y_ticks:
        y = _place_y(value, y_ticks[-1])
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="currentColor" stroke-opacity="0.15"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">{value:g}</text>')
    for value in x_ticks:
        x = _place_x(value, x_ticks[-1])
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="currentColor">{value:g}</text>')
    middle = (_TOP + bottom) / 2
    parts += [
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="currentColor"/>',
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle" fill="currentColor">{escape(x_title)}</text>',
        f'<text x="14" y="{middle}" text-anchor="middle" fill="currentColor" transform="rotate(-90 14 {middle})">{escape(y_title)}</text>',
    ]
    return parts


def _place_x(value: float, highest: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / highest


def _place_y(value: float, highest: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / highest
