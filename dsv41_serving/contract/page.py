"""The result of a watch round as Prometheus metrics, in a text file that the exporter serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.registry import Collector

from dsv41_serving.contract.fingerprint import digest
from dsv41_serving.exporter import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dsv41_serving.contract.round import Round
    from dsv41_serving.exporter.metrics import Family


# A registry keeps collectors by identity.
@dataclass(frozen=True, eq=False)
class _Page(Collector):
    done: Round

    def collect(self) -> Iterator[Family]:
        """Yield every family of the round."""
        done = self.done
        clause, drift = metrics.CLAUSE_KEPT.family(), metrics.DRIFT.family()
        for result in done.results:
            if result.outcome.verdict != "skip":
                clause.add_metric([result.clause.name], result.outcome.verdict == "pass")
        for each in done.drift:
            drift.add_metric([each.item], 1)
        yield from (clause, drift)
        fingerprint = metrics.FINGERPRINT_INFO.family()
        fingerprint.add_metric([digest(done.fingerprint)], 1)
        yield fingerprint
        for metric, value in (
            (metrics.DRIFTED_ITEMS, len(done.drift)),
            (metrics.ROUND_AT, done.finished_at),
            (metrics.ROUND_SECONDS, done.seconds),
            (metrics.ROUND_TOKENS, done.generated_tokens),
        ):
            family = metric.family()
            family.add_metric([], value)
            yield family


def write_page(done: Round, path: Path) -> None:
    """Write the metrics of a round to `path`, whole or not at all."""
    registry = CollectorRegistry()
    registry.register(_Page(done))
    write_to_textfile(str(path), registry)
