"""Ask this node's Prometheus: instant queries and what is firing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

_TIMEOUT_S = 10.0


class NoPrometheusError(Exception):
    """Prometheus does not answer, or refuses the query. The text says which."""


@dataclass(frozen=True)
class Sample:
    """One element of an instant vector."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """One server, by its base URL."""

    def __init__(self, url: str) -> None:
        """Use the server at `url`; nothing is asked yet."""
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=_TIMEOUT_S)

    def query(self, expression: str) -> list[Sample]:
        """Return the instant vector of `expression`, sorted by labels. Raises NoPrometheusError."""
        data = self._get("/api/v1/query", query=expression)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        found = [Sample(row["metric"], float(row["value"][1])) for row in data["result"]]
        return sorted(found, key=lambda sample: sorted(sample.labels.items()))

    def value(self, expression: str) -> float | None:
        """Return the one value of `expression`, or None when it has none. Raises NoPrometheusError."""
        found = self.query(expression)
        return found[0].value if found else None

    def alerts(self) -> list[dict[str, Any]]:
        """Return every pending or firing alert as Prometheus describes it. Raises NoPrometheusError."""
        alerts: list[dict[str, Any]] = self._get("/api/v1/alerts")["alerts"]
        return alerts

    def _get(self, path: str, **parameters: str) -> Any:
        try:
            body = self._client.get(path, params=parameters).json()
        except (httpx.HTTPError, ValueError) as error:
            raise NoPrometheusError(f"no Prometheus answers at {self.url} ({type(error).__name__})") from None
        if body.get("status") != "success":
            raise NoPrometheusError(f"Prometheus refuses it: {body.get('error')}")
        return body["data"]
