"""The table `[monitoring]`: what is measured, what counts as good, and where it is served."""

from __future__ import annotations

from pydantic import Field, model_validator

from dsv41_serving.spec.table import ContradictionError, Port, Seconds, Table

# Bounds of SGLang 0.5.23's histograms in seconds: a share of good requests can be counted only at one of them.
FIRST_TOKEN_BOUNDS = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    20.0,
    40.0,
    60.0,
    80.0,
    100.0,
    200.0,
    400.0,
)
BETWEEN_TOKENS_BOUNDS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)


class Monitoring(Table):
    """What is measured, what counts as good, and where it is served."""

    scrape_interval_s: int = Field(5, ge=1, description="Time between scrapes.")
    prometheus_port: Port = Field(9090, description="Prometheus, on loopback.")
    alertmanager_port: Port = Field(9093, description="Alertmanager, on loopback.")
    node_exporter_port: Port = Field(9100, description="node_exporter, on loopback.")
    exporter_port: Port = Field(9641, description="This project's exporter, on loopback.")
    nixl: bool = Field(
        default=True, description="Let NIXL count its transfers and serve the counters of all ranks, on loopback."
    )
    alert_webhook: str = Field(
        "", description="URL Alertmanager posts alerts to; empty: alerts are only shown.", pattern=r"^(https?://.+)?$"
    )
    runbook_url: str = Field(
        "",
        description="Address where people read monitoring/runbook.md; panels link there. Empty: they carry no link.",
        pattern=r"^(https?://.+)?$",
    )
    canary_interval_s: Seconds = Field(120.0, description="Time between canary conversations.")
    first_token_objective_s: float = Field(
        10.0, description="A first token counts as timely up to here; one of the engine's histogram bounds."
    )
    between_tokens_objective_s: float = Field(
        0.06, description="A token counts as timely up to here; one of the engine's histogram bounds."
    )
    objective: float = Field(
        0.99, gt=0.5, lt=1, description="Share of requests, first tokens and tokens that shall be good."
    )
    time_factor: float = Field(
        1.0, gt=0, le=1, description="Shortens every window and delay of the alert rules; below 1 only for drills."
    )

    @model_validator(mode="after")
    def _measurable(self) -> Monitoring:
        for key, bounds in (
            ("first_token_objective_s", FIRST_TOKEN_BOUNDS),
            ("between_tokens_objective_s", BETWEEN_TOKENS_BOUNDS),
        ):
            value = getattr(self, key)
            if value not in bounds:
                raise ContradictionError(
                    key, f"{value} is no bound of the engine's histogram; use one of: {', '.join(map(str, bounds))}"
                )
        return self
