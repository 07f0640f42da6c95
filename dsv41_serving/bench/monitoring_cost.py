"""Measure what watching costs on an idle stack: all scrapes together, all rules together, the exporter's CPU.

Asks the Prometheus that has watched the stack, idle, for at least WINDOW.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from dsv41_serving.bench.embedded import Figure
from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.errors import InputError
from dsv41_serving.observe.prometheus import NoPrometheusError, Prometheus

WINDOW = "2m"
# Name, expression, factor to the unit, unit, target. Medians over the window: one slow scrape on a busy machine is not the cost.
FIGURES = (
    ("scrape of every page", f"sum(quantile_over_time(0.5, scrape_duration_seconds[{WINDOW}]))", 1e3, "ms", 150.0),
    (
        "evaluation of every rule",
        f"sum(quantile_over_time(0.5, prometheus_rule_group_last_duration_seconds[{WINDOW}]))",
        1e3,
        "ms",
        50.0,
    ),
    ("exporter, share of a core", f'rate(process_cpu_seconds_total{{job="exporter"}}[{WINDOW}])', 100.0, "%", 1.0),
)


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.bench.monitoring_cost", description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--prometheus", required=True, help="URL of the Prometheus that watches the idle stack.")
    options = parser.parse_args()
    try:
        figures = measure(Prometheus(options.prometheus))
    except InputError as error:
        sys.exit(f"dsv41: {error}")
    result = {
        **describe_run(f"{parser.prog} {options.result} --prometheus URL"),
        "figures": [asdict(figure) for figure in figures],
    }
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for figure in figures:
        sys.stdout.write(f"{figure.name}: {figure.value:.3g} {figure.unit} (at most {figure.target:g})\n")


def measure(prometheus: Prometheus) -> list[Figure]:
    """Return the figures. Raises InputError when Prometheus does not answer or has not watched for long enough."""
    figures = []
    for name, expression, factor, unit, target in FIGURES:
        try:
            value = prometheus.value(expression)
        except NoPrometheusError as error:
            raise InputError(
                str(error), remedy="start it with the configuration of `dsv41 metrics configure`"
            ) from None
        if value is None:
            raise InputError(f"{name}: no data", where=prometheus.url, remedy=f"wait {WINDOW}, then measure again")
        figures.append(Figure(name, round(value * factor, 3), unit, target, [round(value * factor, 3)]))
    return figures


if __name__ == "__main__":
    main()
