"""Every metric that exists: from the recorded pages, the engine's declarations, the exporter's table, and Prometheus itself."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from prometheus_client.parser import text_string_to_metric_families

from dsv41_serving.exporter.metrics import METRICS
from dsv41_serving.observe.recording import DECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Kind = Literal["counter", "gauge"]

# Put on every series by the scrape; `service` and `role` on engines, NIXL and router only.
_SCRAPED = frozenset({"node", "job", "instance"})
_SERVICE = frozenset({"service", "role"})
_SERVICE_PAGES = ("prefill", "decode", "aggregated", "router", "nixl")
# What Prometheus makes itself.
_BUILT_IN = {
    "up": _SCRAPED | _SERVICE,
    "scrape_duration_seconds": _SCRAPED | _SERVICE,
    "scrape_samples_scraped": _SCRAPED | _SERVICE,
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "node"}) | _SERVICE,
}


@dataclass
class Series:
    """One sample name: what it counts, its labels, and the values that were seen of them."""

    kind: Kind
    labels: set[str]
    values: dict[str, set[str]] = field(default_factory=dict)
    origin: str = ""
    open_labels: bool = False
    """Whether it may carry labels that nobody has seen."""


def known_metrics(directory: Path) -> dict[str, Series]:
    """Return sample name -> series of everything that may be asked for; `directory` holds the recorded pages.

    Raises FileNotFoundError when nothing was recorded there.
    """
    known = {name: Series("gauge", set(labels), origin="Prometheus") for name, labels in _BUILT_IN.items()}
    declared = json.loads((directory / DECLARED).read_text(encoding="utf-8"))
    for name, row in declared.items():
        for sample, kind, extra in _samples_of(name, row["type"]):
            labels = {*(row["labels"] or ()), *extra, *_SCRAPED, *_SERVICE}
            known[sample] = Series(kind, labels, open_labels=row["labels"] is None, origin="declared")
    for page in sorted(directory.glob("*.prom")):
        _add_page(known, page)
    for metric in METRICS:
        series = known.setdefault(metric.name, Series(metric.kind, set(), origin="exporter"))
        series.labels |= {*metric.labels, *_SCRAPED}
    return known


def _add_page(known: dict[str, Series], page: Path) -> None:
    scraped = _SCRAPED | (_SERVICE if page.name.startswith(_SERVICE_PAGES) else frozenset())
    for family in text_string_to_metric_families(page.read_text(encoding="utf-8")):
        for sample in family.samples:
            cumulative = family.type in {"counter", "histogram", "summary"} and not (
                family.type == "summary" and sample.name == family.name
            )
            series = known.setdefault(sample.name, Series("counter" if cumulative else "gauge", set()))
            series.origin, series.open_labels = page.name, False
            series.labels |= {*sample.labels, *scraped}
            for label, value in sample.labels.items():
                series.values.setdefault(label, set()).add(value)


def _samples_of(name: str, kind: str) -> Iterator[tuple[str, Kind, set[str]]]:
    """Yield (sample name, kind, further labels) of a metric declared with prometheus_client."""
    if kind == "counter":
        yield f"{name.removesuffix('_total')}_total", "counter", set()
    elif kind == "histogram":
        yield f"{name}_bucket", "counter", {"le"}
        yield f"{name}_sum", "counter", set()
        yield f"{name}_count", "counter", set()
    else:
        yield name, "gauge", set()


# What a document may write for a whole family, as in `sglang:kv_transfer_total_mb`.
_SUFFIX = re.compile(r"_(bucket|sum|count|total)$")


def family_names(known: dict[str, Series]) -> set[str]:
    """Return sample names and the names of their families."""
    return set(known) | {_SUFFIX.sub("", name) for name in known}
