"""KV memory: prefill and decode side by side, full and window pools apart."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import DECODE, ENGINE, PREFILL, or_zero, select, total, total_rate

_UP = total(select("up", ENGINE), "service")


def _pool(title: str, role: str) -> Panel:
    return Panel(
        title=title,
        question="How much of the pool is in use, how much is cache that may go, how much is empty?",
        reading=(
            "In use cannot be evicted. Evictable keeps prefixes for the next request and is given up first. When the two "
            "lower bands touch the top and evictable is gone, requests wait or are retracted."
        ),
        kind="stack",
        unit="short",
        queries=(
            Query(total(select("sglang:kv_used_tokens", role)), "in use", "orange"),
            Query(total(select("sglang:kv_evictable_tokens", role)), "evictable", "blue"),
            Query(total(select("sglang:kv_available_tokens", role)), "empty", "text"),
        ),
        width=12,
        alerts=("Dsv41KvPoolFull",),
    )


MEMORY = Row(
    title="KV memory",
    panels=(
        _pool("Prefill pool, tokens", PREFILL),
        _pool("Decode pool, tokens", DECODE),
        Panel(
            title="Window (SWA) pool",
            question="Is the pool of the sliding-window layers the one that fills?",
            reading="A model without window layers shows 0.",
            kind="lines",
            unit="percentunit",
            queries=(Query(total(select("sglang:swa_token_usage", ENGINE), "service"), "{{service}}"),),
            width=8,
            bounds=(0, 1),
            steps=(Step(0.8, "yellow"), Step(0.95, "red")),
            alerts=("Dsv41WindowPoolFull",),
        ),
        Panel(
            title="Reserved for hand-offs",
            question="How much of decode's pool do requests hold whose KV has not arrived?",
            reading="Reserved: memory taken, transfer running. Asked for: still waiting for memory.",
            kind="lines",
            unit="percentunit",
            queries=(
                Query(total(select("sglang:prealloc_full_token_usage", DECODE)), "reserved, full pool"),
                Query(total(select("sglang:prealloc_swa_token_usage", DECODE)), "reserved, SWA pool"),
                Query(total(select("sglang:pending_prealloc_token_usage", DECODE)), "asked for"),
            ),
            width=8,
            steps=(Step(0.7, "yellow"), Step(0.9, "red")),
            alerts=("Dsv41PreallocFull",),
        ),
        Panel(
            title="KV bytes per token",
            question="Does a token cost the memory that the plan counted with?",
            reading="On one GPU. Observed comes from the pool the engine allocated, planned from layout and model.",
            kind="lines",
            unit="bytes",
            queries=(
                Query(select("dsv41_kv_observed_bytes_per_token"), "{{service}} observed"),
                Query(select("dsv41_kv_planned_bytes_per_token"), "{{service}} planned"),
            ),
            width=8,
        ),
        Panel(
            title="Time to exhaustion",
            question="Is the forecast getting shorter?",
            reading="Four hours stand for longer, or for a pool that does not fill.",
            kind="lines",
            unit="s",
            queries=(
                Query(f"clamp_max({select('dsv41_kv_exhaustion_seconds')}, 14400)", "{{service}}, {{pool}} pool"),
            ),
            width=8,
            base="red",
            steps=(Step(600, "yellow"), Step(3600, "green")),
            alerts=("Dsv41KvExhaustion",),
        ),
        Panel(
            title="Predicted and allocated",
            question="Did the engine allocate what was predicted before its start?",
            reading="0: as predicted. +3 %: more was predicted than there is. A step is a new release or other hardware.",
            kind="lines",
            unit="percentunit",
            queries=(Query(select("dsv41_capacity_error_ratio"), "{{service}} {{quantity}}"),),
            width=8,
            bounds=(None, None),
            empty="nothing was predicted: dsv41 up, or dsv41 capacity",
        ),
        Panel(
            title="Retractions and evictions",
            question="Does the engine take memory back from requests or from the cache?",
            reading="Evicted tokens cost a prefill when the prefix returns; a retracted request starts again.",
            kind="lines",
            unit="short",
            queries=(
                Query(
                    or_zero(total_rate("sglang:num_retracted_requests_total", by=("service",)), like=_UP),
                    "{{service}} retracted requests/s",
                ),
                Query(
                    or_zero(total_rate("sglang:evicted_tokens_total", by=("service",)), like=_UP),
                    "{{service}} evicted tokens/s",
                ),
            ),
            reach=1,
            width=8,
            alerts=("Dsv41Retractions",),
        ),
    ),
)
