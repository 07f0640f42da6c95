"""The result of a watch round as Prometheus metrics, in a text file that an exporter serves or a collector reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from dsv41_serving.contract.fingerprint import digest

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.contract.watch import Round


def collect_round(done: Round) -> CollectorRegistry:
    """Return a registry with the metrics of one round."""
    registry = CollectorRegistry()
    clause = Gauge(
        "dsv41_contract_clause_kept", "1 when the clause is kept, 0 when it is missed.", ["clause"], registry=registry
    )
    for result in done.results:
        if result.outcome.verdict != "skip":
            clause.labels(result.clause.name).set(result.outcome.verdict == "pass")
    drift = Gauge(
        "dsv41_contract_drift", "1 for each served fact that is not the accepted one.", ["item"], registry=registry
    )
    for each in done.drift:
        drift.labels(each.item).set(1)
    Gauge("dsv41_contract_drifted_items", "Served facts that are not the accepted ones.", registry=registry).set(
        len(done.drift)
    )
    Gauge(
        "dsv41_contract_fingerprint_info",
        "Always 1; the label is a hash of what is served.",
        ["sha256"],
        registry=registry,
    ).labels(digest(done.fingerprint)).set(1)
    for name, text, value in (
        ("round_timestamp_seconds", "When the last round ended, in Unix seconds.", done.finished_at),
        ("round_seconds", "How long the last round took.", done.seconds),
        ("round_generated_tokens", "Tokens the last round made the model generate.", done.generated_tokens),
    ):
        Gauge(f"dsv41_contract_{name}", text, registry=registry).set(value)
    return registry


def write_page(done: Round, path: Path) -> None:
    """Write the metrics of a round to `path`, whole or not at all."""
    write_to_textfile(str(path), collect_round(done))
