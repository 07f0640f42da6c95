"""Is B faster than A, slower, or is there no difference that these measurements can show. Pure.

A launch is the unit: rounds of one launch share memory addresses, clocks and caches, so they say nothing of how launches
differ. Each launch gives one number, the median of its rounds; the means of two groups of launches are compared by Student's t
with pooled variance, two-sided. What is smaller than the stated floor is no difference whatever the test says.

A comparison as a whole may be wrong once in twenty times for identical configurations, so the 5 % are shared out
(Bonferroni): first over the scenarios, each judged by one headline metric; the other metrics share the same 5 % once more
and decide nothing.

With one launch on a side the rounds are the unit, and the answer holds for these two launches alone.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dsv41_serving.bench.result import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.bench.result import ResultSet

Judgement = Literal["faster", "slower", "no difference", "too few to tell"]
FLOOR = 0.015
"""Smallest relative difference that is called one: about what a pinned GPU repeats to from launch to launch."""

LEVEL = 0.05
"""Share of comparisons of identical configurations that may call a difference."""
EFFECT = 0.05
"""The slow-down that a comparison shall find in 19 of 20."""
_MOST = 64
_ONE_IN_TWENTY = 1.645  # of the normal distribution, one-sided
_STEPS = 200  # of Simpson's rule
_HIGHEST = 1e4


@dataclass(frozen=True)
class Difference:
    """One metric of one scenario. Shares of A: +0.05 is 5 % more."""

    scenario: str
    metric: str
    a: float
    """Mean over A's units: what the change is of."""
    b: float
    change: float
    noise: float
    """Half width of the interval of the change, and at least the floor: nothing smaller can be told. Infinite when there is
    one unit on each side, so that nothing can."""
    judgement: Judgement
    launches: tuple[int, int]
    within_launch: bool
    """Whether there was one launch on a side, so that the difference between launches is not in the noise."""
    headline: bool
    """Whether the scenario is judged by this metric."""
    needed: int | None = None
    """Units on each side that would find EFFECT in 19 of 20, where these are too few; None where they are enough, or none is."""

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values; a noise that is infinite is none."""
        noise = self.noise if math.isfinite(self.noise) else None
        return {**self.__dict__, "launches": list(self.launches), "noise": noise}


def compare_sets(a: ResultSet, b: ResultSet, *, floor: float = FLOOR) -> list[Difference]:
    """Return every metric of every scenario that both sets have.

    Scenarios whose prompts differ are left out, and all of them when acceptance is simulated differently: such speeds are not
    of the same thing (`list_obstacles` says which).
    """
    if a.simulated != b.simulated:
        return []
    shared = [name for name in a.scenarios if name in b.scenarios and _prompts(a, name) == _prompts(b, name)]
    rows = []
    for scenario in shared:
        for metric in METRICS:
            units_a, units_b, within = _units(a, b, scenario, metric)
            if not units_a or not units_b or not any(units_a):  # a share of nothing is none
                continue
            leading = metric == headline(a, scenario)
            level = LEVEL / len(shared) if leading else LEVEL / len(shared) / (len(METRICS) - 1)
            rows.append(
                judge(scenario, metric, units_a, units_b, within=within, floor=floor, level=level, leading=leading)
            )
    return rows


def headline(result: ResultSet, scenario: str) -> str:
    """Return the metric that a scenario is judged by: one request by its decode rate, several by what comes out in all."""
    alone = all(run.at_once == 1 for run in result.runs_of(scenario))
    return "decode_tok_s" if alone else "output_tok_s"


def summarise(rows: Sequence[Difference]) -> list[str]:
    """Return one sentence for each scenario, by its headline metric."""
    lines = []
    for row in rows:
        if not row.headline:
            continue
        unit = "rounds of one launch" if row.within_launch else "launches"
        counts = f"{row.launches[0]} and {row.launches[1]} {unit}"
        told = f"noise {row.noise:.1%}, {counts}"
        if row.judgement == "too few to tell":
            lines.append(f"{row.scenario}: too few to tell ({counts}); measure more rounds, or launches")
        elif row.judgement == "no difference":
            wanted = f"; {row.needed} a side would find {EFFECT:.0%}" if row.needed else ""
            lines.append(f"{row.scenario}: no difference ({row.change:+.1%}, {told}{wanted})")
        else:
            lines.append(f"{row.scenario}: B is {row.judgement} by {abs(row.change):.1%} ({told})")
    return lines


def list_obstacles(a: ResultSet, b: ResultSet) -> list[str]:
    """Return why sets, or scenarios of them, are not compared; one line each."""
    found = []
    for scenario in dict.fromkeys((*a.scenarios, *b.scenarios)):
        if scenario not in a.scenarios or scenario not in b.scenarios:
            found.append(f"{scenario}: measured on one side only")
        elif _prompts(a, scenario) != _prompts(b, scenario):
            found.append(f"{scenario}: the prompts differ, so do the answers' lengths or the tokenizer")
    if a.simulated != b.simulated:
        found.append(f"acceptance is simulated differently ({a.simulated or 'real'} against {b.simulated or 'real'})")
    return found


def judge(
    scenario: str,
    metric: str,
    a: Sequence[float],
    b: Sequence[float],
    *,
    within: bool = False,
    floor: float = FLOOR,
    level: float = LEVEL,
    leading: bool = True,
) -> Difference:
    """Compare the means of two groups of numbers, one per unit, at the two-sided significance `level`."""
    middle_a, middle_b = statistics.fmean(a), statistics.fmean(b)
    change = middle_b / middle_a - 1.0
    noise = max(floor, _half_width(a, b, level) / middle_a)
    judgement: Judgement = "no difference" if math.isfinite(noise) else "too few to tell"
    if abs(change) > noise:
        judgement = "faster" if (change > 0) == METRICS[metric] else "slower"
    return Difference(
        scenario=scenario,
        metric=metric,
        a=middle_a,
        b=middle_b,
        change=change,
        noise=noise,
        judgement=judgement,
        launches=(len(a), len(b)),
        within_launch=within,
        headline=leading,
        needed=_find_needed(a, b, level, floor) if EFFECT < noise < math.inf else None,
    )


def _find_needed(a: Sequence[float], b: Sequence[float], level: float, floor: float) -> int | None:
    """Return the units on each side with which EFFECT passes the noise in 19 of 20, for the spread that `a` and `b` show."""
    spread = _half_width(a, b, level) / find_t(len(a) + len(b) - 2, level) / math.sqrt(1 / len(a) + 1 / len(b))
    share = spread / statistics.fmean(a)
    for count in range(2, _MOST + 1):
        error = share * math.sqrt(2 / count)
        if max(floor, find_t(2 * count - 2, level) * error) + _ONE_IN_TWENTY * error <= EFFECT:
            return count
    return None


def _half_width(a: Sequence[float], b: Sequence[float], level: float) -> float:
    """Return half of the interval of the difference of means; infinite when there is nothing to judge spread by."""
    freedom = len(a) + len(b) - 2
    if freedom < 1:
        return math.inf
    squares = sum((value - statistics.fmean(group)) ** 2 for group in (a, b) for value in group)
    return find_t(freedom, level) * math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))


@functools.cache
def find_t(freedom: int, level: float = LEVEL) -> float:
    """Return the two-sided `level` point of Student's t, by bisection of its distribution."""
    low, high = 0.0, _HIGHEST
    while high - low > 1e-9 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if _outside(middle, freedom) > level else (low, middle)
    return high


def _outside(t: float, freedom: int) -> float:
    """Return the probability of a value beyond -t or t.

    With t = sqrt(freedom) tan(angle) the density becomes a power of a cosine, which Simpson's rule integrates well.
    """
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(math.pi)
    start, end = math.atan(t / math.sqrt(freedom)), math.pi / 2
    width = (end - start) / _STEPS
    heights = [math.cos(start + number * width) ** (freedom - 1) for number in range(_STEPS + 1)]
    area = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 2 * math.exp(log) * area * width / 3


def _units(a: ResultSet, b: ResultSet, scenario: str, metric: str) -> tuple[list[float], list[float], bool]:
    runs = a.runs_of(scenario), b.runs_of(scenario)
    within = min(map(len, runs)) == 1
    groups = []
    for side in runs:
        values = (
            [round_.metrics() for run in side for round_ in run.rounds] if within else [run.metrics() for run in side]
        )
        groups.append([each[metric] for each in values if metric in each])
    return groups[0], groups[1], within


def _prompts(result: ResultSet, scenario: str) -> set[str]:
    return {run.prompts_sha256 for run in result.runs_of(scenario)}
