"""What takes a memory of the last minutes: when a KV pool is full, and the law of the decode step.

The engines' own pages are read here every few seconds, only the lines that are needed.

The step law is a least-squares fit of step = a + b * batch. A step is the inter-token time times the accepted length
(speculation yields several tokens a step), both means over one look; the batch is the running requests at that look.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import httpx

from dsv41_serving.check import metrics as names
from dsv41_serving.exporter import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsv41_serving.exporter.metrics import Family
    from dsv41_serving.plan.model import Service

FORECAST_WINDOW_S = 600.0
FORECAST_POINTS = 6
STEP_WINDOW_S = 3600.0
STEP_POINTS = 10
_TIMEOUT_S = 5.0
_GIB = 2**30

_FREE = {"full": (names.KV_AVAILABLE, names.KV_EVICTABLE), "swa": (names.WINDOW_AVAILABLE, names.WINDOW_EVICTABLE)}
_USED = {"full": names.KV_USED, "swa": names.WINDOW_USED}
WANTED = frozenset(
    {names.KV_CAPACITY, names.KV_GIB, *(name for pair in _FREE.values() for name in pair), *_USED.values()}
    | {names.BETWEEN_TOKENS_SUM, names.BETWEEN_TOKENS_COUNT, names.RUNNING, names.ACCEPTED_LENGTH}
)


class Point(NamedTuple):
    """One pair of a fit."""

    x: float
    y: float


@dataclass
class _Memory:
    free: dict[str, deque[Point]] = field(default_factory=lambda: {pool: deque() for pool in _FREE})
    steps: deque[tuple[float, Point]] = field(default_factory=deque)
    itl: tuple[float, float] | None = None


class EnginesSource:
    """Forecast, step law and bytes per token of every engine."""

    name = "engines"

    def __init__(
        self, engines: Sequence[Service], planned_bytes: Callable[[], dict[str, float]], *, window_factor: float = 1.0
    ) -> None:
        """Watch `engines`; `planned_bytes` gives KV bytes per token by engine, as soon as the model is laid out.

        `window_factor` scales both windows.
        """
        self._engines = engines
        self._planned = planned_bytes
        self._factor = window_factor
        self._memory = {engine.name: _Memory() for engine in engines}
        self._client = httpx.Client(timeout=_TIMEOUT_S)

    def read(self) -> Iterable[Family]:
        """Look at every engine once and return what follows from this look and the earlier ones."""
        planned = metrics.KV_PLANNED.family()
        for name, value in self._planned().items():
            planned.add_metric([name], value)
        families = {
            metric: metric.family()
            for metric in (
                metrics.KV_OBSERVED,
                metrics.KV_EXHAUSTION,
                metrics.STEP_SECONDS,
                metrics.STEP_INTERCEPT,
                metrics.STEP_SLOPE,
                metrics.STEP_POINTS,
            )
        }
        for engine in self._engines:
            try:
                response = self._client.get(engine.metrics_url)
                response.raise_for_status()
            except httpx.TimeoutException:
                continue  # busy, not new: what was seen before still holds
            except httpx.HTTPError:
                self._memory[engine.name] = _Memory()  # a new process begins with empty pools
                continue
            for metric, labels, value in self._look(engine, read_sums(response.text), time.monotonic()):
                families[metric].add_metric(labels, value)
        return [planned, *families.values()]

    def _look(
        self, engine: Service, sums: dict[str, float], now: float
    ) -> Iterator[tuple[metrics.Metric, list[str], float]]:
        memory = self._memory[engine.name]
        capacity, used_gib = sums.get(names.KV_CAPACITY, 0.0), sums.get(names.KV_GIB)
        if capacity and used_gib is not None:
            yield metrics.KV_OBSERVED, [engine.name], used_gib * _GIB / capacity
        for pool, parts in _FREE.items():
            free = sum(sums.get(part, 0.0) for part in parts)
            if not free and not sums.get(_USED[pool], 0.0):
                continue  # this engine has no such pool
            _remember(memory.free[pool], Point(now, free), now - FORECAST_WINDOW_S * self._factor)
            if len(memory.free[pool]) >= FORECAST_POINTS:
                yield metrics.KV_EXHAUSTION, [engine.name, pool], forecast_s(memory.free[pool])
        step = _step_of(memory, sums)
        if step is not None:
            memory.steps.append((now, step))
            yield metrics.STEP_SECONDS, [engine.name], step.y
        while memory.steps and memory.steps[0][0] < now - STEP_WINDOW_S * self._factor:
            memory.steps.popleft()
        if engine.kind != "prefill":
            yield metrics.STEP_POINTS, [engine.name], len(memory.steps)
        law = fit_line([point for _, point in memory.steps]) if len(memory.steps) >= STEP_POINTS else None
        if law is not None:
            yield metrics.STEP_INTERCEPT, [engine.name], law[0]
            yield metrics.STEP_SLOPE, [engine.name], law[1]


def read_sums(text: str, wanted: frozenset[str] = WANTED) -> dict[str, float]:
    """Return the `wanted` samples of a page, summed over their labels; a full parse would cost fifty times as much."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line[: line.find("{")] if "{" in line else line.partition(" ")[0]
        if name in wanted:
            sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums


def forecast_s(free: Sequence[Point]) -> float:
    """Return the seconds until `free` tokens (x: seconds, y: tokens) reach 0 on their line; +Inf when they do not fall."""
    law = fit_line(free)
    if law is None or law[1] >= 0:
        return math.inf
    return max(0.0, free[-1].y / -law[1])


def fit_line(points: Sequence[Point]) -> tuple[float, float] | None:
    """Return (a, b) of the least-squares line y = a + b * x, or None when fewer than two x differ."""
    try:
        slope, intercept = statistics.linear_regression([p.x for p in points], [p.y for p in points])
    except statistics.StatisticsError:
        return None
    return intercept, slope


def _remember(points: deque[Point], point: Point, oldest: float) -> None:
    points.append(point)
    while points[0].x < oldest:
        points.popleft()


def _step_of(memory: _Memory, sums: dict[str, float]) -> Point | None:
    """Return (batch, seconds of a step) since the last look; None when no token came."""
    if names.BETWEEN_TOKENS_SUM not in sums:
        return None
    before, memory.itl = memory.itl, (sums[names.BETWEEN_TOKENS_SUM], sums.get(names.BETWEEN_TOKENS_COUNT, 0.0))
    if before is None or memory.itl[1] <= before[1] or not sums.get(names.RUNNING):
        return None
    between_tokens = (memory.itl[0] - before[0]) / (memory.itl[1] - before[1])
    return Point(sums[names.RUNNING], between_tokens * max(1.0, sums.get(names.ACCEPTED_LENGTH, 0.0)))
