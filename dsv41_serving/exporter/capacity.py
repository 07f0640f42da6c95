"""How far the prediction of `dsv41 capacity`, made at the start, lies from what each engine then allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from dsv41_serving.capacity.measured import GAUGES
from dsv41_serving.capacity.prediction import read_prediction
from dsv41_serving.exporter import metrics
from dsv41_serving.exporter.engines import read_sums

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family
    from dsv41_serving.plan.model import Plan

_TIMEOUT_S = 5.0


class CapacitySource:
    """The stored prediction against the engines' own pages. Nothing before the first start."""

    name = "capacity"

    def __init__(self, plan: Plan) -> None:
        """Ask the engines of `plan`."""
        self._plan = plan
        self._client = httpx.Client(timeout=_TIMEOUT_S)

    def read(self) -> Iterable[Family]:
        """Return the error of every quantity that both know."""
        family = metrics.CAPACITY_ERROR.family()
        prediction = read_prediction(self._plan.state_dir)
        for engine in self._plan.engines:
            predicted = prediction.engines.get(engine.name) if prediction else None
            if not predicted:
                continue
            try:
                response = self._client.get(engine.metrics_url)
                response.raise_for_status()
            except httpx.HTTPError:
                continue
            sums = read_sums(response.text, frozenset(GAUGES.values()))
            for quantity, value in predicted.items():
                if reported := sums.get(GAUGES.get(quantity, "")):
                    family.add_metric([engine.name, quantity.replace(" ", "_")], value / reported - 1.0)
        return [family]
