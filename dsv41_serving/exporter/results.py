"""What the canary and the contract watch left behind: their result files, as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from dsv41_serving.canary.result import CanaryResults
from dsv41_serving.contract.watch import Watch
from dsv41_serving.exporter import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family


class CanarySource:
    """The last canary run. Nothing before the first one."""

    name = "canary"

    def __init__(self, state_dir: str, interval_s: float) -> None:
        """Read below `state_dir`; `interval_s` is the planned time between runs."""
        self._results = CanaryResults(state_dir)
        self._interval_s = interval_s

    def read(self) -> Iterable[Family]:
        """Return the families of the last run."""
        interval = metrics.CANARY_INTERVAL.family()
        interval.add_metric([], self._interval_s)
        yield interval
        last = self._results.read()
        if last is None:
            return
        values = {
            metrics.CANARY_PASSED: float(last.passed),
            metrics.CANARY_RUN_AT: last.finished_at,
            metrics.CANARY_SECONDS: last.seconds,
            metrics.CANARY_TOKENS: last.generated_tokens,
            metrics.CANARY_RUNS: last.runs,
            metrics.CANARY_FAILURES: last.failures,
        }
        if last.first_token_s is not None:
            values[metrics.CANARY_FIRST_TOKEN] = last.first_token_s
        for metric, value in values.items():
            family = metric.family()
            family.add_metric([], value)
            yield family
        steps = metrics.CANARY_STEP.family()
        for step in last.steps:
            steps.add_metric([step.name], float(not step.problem))
        yield steps


class ContractSource:
    """The last round of `dsv41 contract watch`, from the text file it writes."""

    name = "contract"

    def __init__(self, state_dir: str) -> None:
        """Read below `state_dir`."""
        self._path = Watch(state_dir).page

    def read(self) -> Iterable[Family]:
        """Return the families of the last round; none before the first. Raises ValueError when the file is damaged."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for found in text_string_to_metric_families(text):
            metric = metrics.BY_NAME.get(found.name)
            if metric is None:
                continue  # written by another version
            family = metric.family()
            for sample in found.samples:
                family.add_metric([sample.labels.get(label, "") for label in metric.labels], sample.value)
            yield family
