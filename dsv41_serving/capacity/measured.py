"""Compare the prediction with what running engines report on their own pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.capacity.estimate import GIB, LOADED_BYTES
from dsv41_serving.check.metrics import KV_CAPACITY, MetricsPage, scrape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.capacity.estimate import EngineCapacity, NodeCapacity
    from dsv41_serving.plan.model import Plan

KV_GIB = "sglang:kv_cache_memory_usage_gb"
WEIGHTS_GIB = "sglang:weight_memory_usage_gb"
WINDOW_TOKENS = "sglang:max_total_num_tokens_swa"
GRAPHS_GIB = "sglang:graph_memory_usage_gb"
STAGING_BYTES = "dsv41_handoff_staging_bytes"
GAUGES = {
    "pool tokens": KV_CAPACITY,
    "pool GiB": KV_GIB,
    "window tokens": WINDOW_TOKENS,
    "weights GiB": WEIGHTS_GIB,
    "graphs GiB": GRAPHS_GIB,
    "staging bytes": STAGING_BYTES,
}


@dataclass(frozen=True)
class Comparison:
    """One quantity of one engine."""

    engine: str
    quantity: str
    predicted: float
    reported: float

    @property
    def error(self) -> float:
        """Prediction against report, as a share of the report."""
        return self.predicted / self.reported - 1.0 if self.reported else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the row with its error."""
        return {**asdict(self), "error": round(self.error, 5)}


async def read_reports(plan: Plan) -> dict[str, MetricsPage]:
    """Return the page of each engine of `plan` that answers, by name."""
    pages = {}
    async with httpx.AsyncClient(timeout=10.0) as client:
        for engine in plan.engines:
            try:
                pages[engine.name] = await scrape(client, engine.metrics_url)
            except (httpx.HTTPError, ValueError):
                continue
    return pages


def compare_reports(node: NodeCapacity, pages: Mapping[str, MetricsPage]) -> list[Comparison]:
    """Return prediction against report for every engine with a page. Sizes in GiB, as SGLang's gauges.

    SGLang adds no gauge for what it does not know; weights are compared on GPUs only: on a CPU it reports how far free
    host memory fell meanwhile, which every other process moves.
    """
    rows = []
    for engine in node.engines:
        page = pages.get(engine.settings.name)
        if page is None:
            continue
        for quantity, predicted in predict(engine).items():
            reported = page.get(GAUGES[quantity])
            if reported:
                rows.append(Comparison(engine.settings.name, quantity, predicted, reported))
    return rows


def predict(engine: EngineCapacity) -> dict[str, float]:
    """Return the value of every quantity of GAUGES that can be predicted of an engine."""
    found = {"pool tokens": float(engine.tokens), "pool GiB": engine.pool_bytes / GIB}
    if engine.pools.window_tokens:
        found["window tokens"] = float(engine.pools.window_tokens)
    if engine.gpu_bytes is not None:
        found["weights GiB"] = (engine.weights.gpu + LOADED_BYTES) / GIB
    # One sample a phase, set at the start: those of the decoder's tail are captured later and never in it.
    if engine.decode_graph_bytes:
        found["graphs GiB"] = engine.decode_graph_bytes / GIB
    if engine.staging_bytes:
        found["staging bytes"] = float(engine.staging_bytes * engine.settings.tp)  # the page adds up the ranks
    return found
