"""Read a Prometheus page and pick numbers from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    import httpx

# What each engine counts by itself; the gate wants to see them move. Spelled as SGLang 0.5.23 exports them.
PROMPT_TOKENS = "sglang:prompt_tokens_total"
GENERATED_TOKENS = "sglang:generation_tokens_total"
HANDED_OVER_MIB = "sglang:kv_transfer_total_mb_sum"
TRANSFER_FAILURES = "sglang:num_transfer_failed_reqs_total"
RETRACTED = "sglang:num_retracted_requests_total"
ABORTED = "sglang:num_aborted_requests_total"
RUNNING = "sglang:num_running_reqs"
QUEUED = "sglang:num_queue_reqs"
HTTP_ACTIVE = "sglang:http_requests_active"
KV_USED = "sglang:kv_used_tokens"
KV_EVICTABLE = "sglang:kv_evictable_tokens"
KV_AVAILABLE = "sglang:kv_available_tokens"
KV_CAPACITY = "sglang:max_total_num_tokens"
KV_GIB = "sglang:kv_cache_memory_usage_gb"
WINDOW_USED = "sglang:swa_used_tokens"
WINDOW_EVICTABLE = "sglang:swa_evictable_tokens"
WINDOW_AVAILABLE = "sglang:swa_available_tokens"
BETWEEN_TOKENS_SUM = "sglang:inter_token_latency_seconds_sum"
BETWEEN_TOKENS_COUNT = "sglang:inter_token_latency_seconds_count"
ACCEPTED_LENGTH = "sglang:spec_accept_length"
HAND_OFF_QUEUES = (
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
    "sglang:num_decode_deferred_kv_release_reqs",
)


class MetricsPage:
    """The samples of one scrape; values of one name are summed over their labels."""

    def __init__(self, text: str) -> None:
        """Parse `text` in the Prometheus exposition format. Raises ValueError when it is not."""
        self._sums: dict[str, float] = {}
        self._posts: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("method") == "POST":
                    self._posts[sample.name] = self._posts.get(sample.name, 0.0) + sample.value
                self._sums[sample.name] = self._sums.get(sample.name, 0.0) + sample.value

    def get(self, name: str) -> float | None:
        """Return the sum of all samples called `name`, or None when the page has none."""
        return self._sums.get(name)

    def total(self, *names: str) -> float:
        """Return the sum over `names`; an absent one counts as 0, as a counter that has not moved yet."""
        return sum(self._sums.get(name, 0.0) for name in names)

    def posts(self, name: str) -> float:
        """Return the sum of the samples called `name` that are about HTTP POST."""
        return self._posts.get(name, 0.0)


async def scrape(client: httpx.AsyncClient, url: str) -> MetricsPage:
    """Fetch and parse the page at `url`. Raises httpx.HTTPError or ValueError."""
    response = await client.get(url)
    response.raise_for_status()
    return MetricsPage(response.text)
