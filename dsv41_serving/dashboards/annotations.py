"""What every board marks on its time axis."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Annotation
from dsv41_serving.dashboards.promql import select

# Grafana asks annotations once a minute, so an event must be true for more than one.
_SEEN = "2m"

ANNOTATIONS = (
    Annotation(
        "Release",
        "purple",
        f"{select('dsv41_release_info')} unless on (node, release) {select('dsv41_release_info')} offset {_SEEN}",
        "release {{release}}",
    ),
    Annotation(
        "Restart",
        "orange",
        f"changes({select('dsv41_service_started_timestamp_seconds')}[{_SEEN}]) > 0",
        "{{service}} started",
    ),
)
