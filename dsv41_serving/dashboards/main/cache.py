"""What the prefix cache saves."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row
from dsv41_serving.dashboards.promql import DECODE, PREFILL, buckets, ratio, select, total, total_rate

CACHE = Row(
    title="Prefix cache",
    panels=(
        Panel(
            title="Hit ratio by tokens",
            question="Which share of prompt tokens comes from the cache?",
            reading="By tokens, not by requests; a retracted request is not counted twice.",
            kind="lines",
            unit="percentunit",
            queries=(
                Query(
                    ratio(
                        total_rate("sglang:prefill_effective_tokens_total", PREFILL, 'mode=~".*_hit"'),
                        total_rate("sglang:prefill_effective_tokens_total", PREFILL),
                    ),
                    "from cache",
                ),
            ),
            width=6,
            bounds=(0, 1),
            alerts=("Dsv41CacheHitsCollapsed",),
        ),
        Panel(
            title="Cached tokens by source",
            question="Where do cached tokens come from?",
            reading="Device, host or storage; they add up.",
            kind="stack",
            unit="short",
            queries=(
                Query(
                    total_rate("sglang:cached_tokens_total", PREFILL, by=("cache_source",)), "{{cache_source}} tokens/s"
                ),
            ),
            width=6,
        ),
        Panel(
            title="Uncached prompt length",
            question="How many tokens of a prompt are left to compute?",
            kind="heatmap",
            unit="short",
            queries=(Query(buckets("sglang:uncached_prompt_tokens_histogram", PREFILL), "{{le}}"),),
            width=6,
        ),
        Panel(
            title="Sessions in decode",
            question="How many distinct routing keys are being answered at once?",
            reading="Clients that send no routing key count as none.",
            kind="lines",
            unit="short",
            queries=(Query(total(select("sglang:num_unique_running_routing_keys", DECODE)), "running keys"),),
            reach=1,
            width=6,
        ),
    ),
)
