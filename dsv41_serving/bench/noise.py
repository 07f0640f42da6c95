"""How often a comparison is right on the noise that was really measured, and how many launches it takes. Pure.

The launches of one configuration are all that is needed: what they differ by is noise. Two groups are drawn from them again and
again (with replacement, smoothed), one of them made slower by a known share, and judged as
`compare` judges.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dsv41_serving.bench.compare import FLOOR, LEVEL, headline, judge
from dsv41_serving.bench.result import METRICS
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.bench.result import ResultSet

TRIALS = 2000
WANTED = 19 / 20
SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_FEWEST = 4


@dataclass(frozen=True)
class Reliability:
    """What comparisons of `launches` against as many would have said."""

    launches: int
    quiet: float
    """Share of comparisons of identical configurations that are 'no difference'."""
    found: float
    """Share of comparisons in which the planted slow-down is called slower."""

    @property
    def enough(self) -> bool:
        """Whether both happen in 19 of 20."""
        return self.quiet >= WANTED and self.found >= WANTED

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {**asdict(self), "enough": self.enough}


@dataclass(frozen=True)
class Noise:
    """The noise of one scenario's headline metric."""

    scenario: str
    metric: str
    samples: int
    spread: float
    """Standard deviation from launch to launch, as a share of the mean."""
    rows: tuple[Reliability, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the noise as JSON values, with `needed`."""
        return {**asdict(self), "rows": [row.as_json() for row in self.rows], "needed": self.needed}

    @property
    def needed(self) -> int | None:
        """The fewest launches that are enough; None when not even the most that were tried are."""
        return next((row.launches for row in self.rows if row.enough), None)


def measure_noise(
    result: ResultSet, *, slower: float, floor: float = FLOOR, level: float = LEVEL, trials: int = TRIALS
) -> list[Noise]:
    """Return the noise of every scenario of `result`, one value a launch. Raises InputError with fewer than four launches."""
    found = []
    for scenario in result.scenarios:
        metric = headline(result, scenario)
        values = [run.metrics()[metric] for run in result.runs_of(scenario) if metric in run.metrics()]
        if len(values) < _FEWEST:
            raise InputError(
                f"{len(values)} launches of {scenario} say too little of how launches differ",
                where=result.label,
                remedy=f"measure {_FEWEST} or more: dsv41 bench compare a.toml a.toml --launches {_FEWEST}",
            )
        spread = statistics.stdev(values) / statistics.fmean(values)
        rows = tuple(
            simulate(
                values, metric, size, slower=slower, floor=floor, level=level / len(result.scenarios), trials=trials
            )
            for size in SIZES
        )
        found.append(Noise(scenario, metric, len(values), spread, rows))
    return found


def simulate(
    values: Sequence[float], metric: str, launches: int, *, slower: float, floor: float, level: float, trials: int
) -> Reliability:
    """Return how `trials` comparisons of `launches` values a side, drawn from `values`, end; `slower` is the planted share."""
    chance = random.Random(f"{launches}/{metric}")  # noqa: S311 - the same answer every time
    middle = statistics.fmean(values)
    deviation, size = statistics.stdev(values), len(values)
    # A sample deviates from its own mean by less than from the true one, and a few values drawn twice would have no spread at
    # all: each draw is smeared by a normal kernel of Silverman's width, and the whole scaled back to the deviation of the sample.
    kernel = 1.06 * deviation * size**-0.2
    scale = deviation / math.hypot(statistics.pstdev(values), kernel) if deviation else 0.0

    def draw() -> list[float]:
        drawn = chance.choices(values, k=launches)
        return [middle + scale * (value - middle + chance.gauss(0, kernel)) for value in drawn]

    factor = 1 / (1 + slower) if METRICS[metric] else 1 + slower
    quiet = found = 0
    for _ in range(trials):
        a, b = draw(), draw()
        quiet += judge("", metric, a, b, floor=floor, level=level).judgement == "no difference"
        found += judge("", metric, a, [each * factor for each in b], floor=floor, level=level).judgement == "slower"
    return Reliability(launches, quiet / trials, found / trials)


def explain(noise: Noise, slower: float) -> list[str]:
    """Say what the noise means, one line for each size and one for the answer."""
    lines = [
        f"{noise.scenario}: {noise.metric} differs by {noise.spread:.1%} from launch to launch ({noise.samples} launches)"
    ]
    lines += [
        f"  {row.launches:>2} launches a side: identical is no difference in {row.quiet:.1%}, "
        f"{slower:.0%} slower is found in {row.found:.1%}"
        for row in noise.rows
    ]
    enough = f"{noise.needed} launches a side find" if noise.needed else f"not even {SIZES[-1]} launches a side find"
    return [*lines, f"  {enough} a slow-down of {slower:.0%} in 19 of 20"]
