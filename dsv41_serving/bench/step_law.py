"""The law of a decode step: time = a + b x requests, fitted over concurrency, and what its two numbers mean. Pure.

a is what a step costs whatever runs: launches, weights read once, collectives. b is what each further request adds: its
KV, its share of the matrices. A b that stays when prompts become longer means that a step works over the longest context
it could have instead of the tokens that are there: the diagnosis of the seed measurement on RTX PRO 6000.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dsv41_serving.bench.scenario import Scenario, Turn
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.bench.result import ResultSet

AT_ONCE = (1, 2, 4, 8, 16, 32, 64)
_LEVELS = 3
_SAME = 0.25  # a slope that grows by less than this share, while tokens grow fourfold or more, does not grow
_SCATTERED = 0.1  # from here on the points are no line
_HEAVY = 0.05  # share of `a` from which the slope is worth a word


@dataclass(frozen=True)
class Point:
    """The median time between tokens at one concurrency."""

    requests: int
    step_s: float


@dataclass(frozen=True)
class Law:
    """A least-squares line through the points of one prompt length."""

    prompt: int
    a_s: float
    b_s: float
    r2: float
    points: tuple[Point, ...]

    def at(self, requests: float) -> float:
        """Return the step time of the line."""
        return self.a_s + self.b_s * requests

    @property
    def doubling(self) -> float:
        """Requests at which a step takes twice as long as its fixed part; infinite when it does not grow."""
        return self.a_s / self.b_s if self.b_s > 0 else float("inf")

    @property
    def scatter(self) -> float:
        """How far the points lie off the line: root mean square, as a share of the mean step."""
        squares = [(point.step_s - self.at(point.requests)) ** 2 for point in self.points]
        return math.sqrt(statistics.fmean(squares)) / statistics.fmean(point.step_s for point in self.points)

    def as_json(self) -> dict[str, Any]:
        """Return the law as JSON values."""
        return asdict(self)


def list_levels(longest: int, cap: int) -> list[int]:
    """Return the concurrencies to measure, up to `longest` requests and the engine's cap.

    Raises InputError when these are too few for a line.
    """
    levels = [level for level in AT_ONCE if level <= min(longest, cap)]
    if len(levels) < _LEVELS:
        where = "--longest" if longest <= cap else "max_running_requests of the engine that decodes"
        raise InputError(
            f"{min(longest, cap)} leaves levels of {' and '.join(map(str, levels))} at once, too few for a line",
            where=where,
            remedy=f"at least {AT_ONCE[_LEVELS - 1]}",
        )
    return levels


def list_loads(prompts: Sequence[int], levels: Sequence[int], answer: int) -> list[Scenario]:
    """Return one scenario for each prompt length and concurrency: every request decodes beside all the others."""
    return [
        Scenario(
            name=f"step-{prompt}-{level}",
            says=f"{level} at once after {prompt} tokens",
            turns=tuple(Turn(prompt, answer) for _ in range(level)),
            at_once=level,
        )
        for prompt in prompts
        for level in levels
    ]


def read_laws(result: ResultSet) -> list[Law]:
    """Return one law for each prompt length that `result` measured at three concurrencies or more."""
    points: dict[int, list[Point]] = {}
    for scenario in result.scenarios:
        if not scenario.startswith("step-"):
            continue
        _, prompt, level = scenario.split("-")
        gaps = [run.metrics()["itl_ms"] / 1e3 for run in result.runs_of(scenario) if "itl_ms" in run.metrics()]
        if gaps:
            points.setdefault(int(prompt), []).append(Point(int(level), statistics.median(gaps)))
    return [fit_law(prompt, group) for prompt, group in sorted(points.items()) if len(group) >= _LEVELS]


def fit_law(prompt: int, points: Sequence[Point]) -> Law:
    """Fit the line through `points`. Raises ValueError with fewer than two concurrencies."""
    xs, ys = [point.requests for point in points], [point.step_s for point in points]
    try:
        slope, start = statistics.linear_regression(xs, ys)
    except statistics.StatisticsError as error:
        raise ValueError("a line needs two concurrencies") from error
    middle = statistics.fmean(ys)
    total = sum((y - middle) ** 2 for y in ys)
    left = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Law(prompt, start, slope, 1.0 - left / total if total else 1.0, tuple(points))


def explain(laws: Sequence[Law]) -> list[str]:
    """Say what the laws mean, one line each."""
    lines = []
    for law in laws:
        line = f"after {law.prompt} tokens: step = {law.a_s * 1e3:.2f} ms + {law.b_s * 1e3:.3f} ms x requests"
        growth = f"doubles at {law.doubling:.1f} requests" if law.b_s > 0 else "does not grow with requests"
        lines.append(f"{line} (R2 {law.r2:.3f}); a step {growth}")
    if (worst := max((law.scatter for law in laws), default=0.0)) > _SCATTERED:
        lines.insert(0, f"no law can be read: steps lie {worst:.0%} off their line; measure on a quieter machine")
    elif len(laws) > 1:
        lines.append(_explain_context(laws[0], laws[-1]))
    return lines


def _explain_context(short: Law, long: Law) -> str:
    if short.b_s <= _HEAVY * short.a_s / _LEVELS and long.b_s <= _HEAVY * long.a_s / _LEVELS:
        return "requests are nearly free at both lengths: a step is bound by its fixed part"
    if long.b_s <= short.b_s * (1 + _SAME):
        return (
            f"b is the same after {short.prompt} and after {long.prompt} tokens: each request costs the same whatever it holds, "
            "which points to work over the longest possible context (a fall-back kernel), or to work that ignores the cache"
        )
    return (
        f"b grows {long.b_s / short.b_s:.1f}-fold from {short.prompt} to {long.prompt} tokens: "
        "each request costs what it holds, as it should"
    )
