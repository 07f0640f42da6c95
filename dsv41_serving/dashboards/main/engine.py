"""The decode engine: batch, step law, graphs, speculation, tokens, where the scheduler's time goes."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row
from dsv41_serving.dashboards.promql import DECODE, ENGINE, ratio, select, total, total_rate


def _of_engine(metric: str) -> str:
    """Return the mean of a GPU's metric over the GPUs of each engine."""
    info = select("dsv41_gpu_info", 'service!=""')
    return f"avg by (service) ({select(metric)} * on (node, gpu) group_left (service) {info})"


DECODE_ENGINE = Row(
    title="Decode engine",
    panels=(
        Panel(
            title="Batch",
            question="How many requests share a decode step, and how long are they on average?",
            kind="lines",
            unit="short",
            queries=(
                Query(total(select("sglang:num_running_reqs", DECODE)), "requests in the batch"),
                Query(
                    ratio(
                        total(select("sglang:decode_sum_seq_lens", DECODE)),
                        total(select("sglang:num_running_reqs", DECODE)),
                    ),
                    "tokens per request (right)",
                    right=True,
                ),
            ),
            width=6,
            bounds=(0, None),
        ),
        Panel(
            title="Step time and step law",
            question="Does a step take what this batch should take?",
            reading=(
                "The law is a + b * batch, fitted over the last hour. Steps above it at the same batch are something new; a "
                "growing b is work per request that a batch does not share."
            ),
            kind="lines",
            unit="s",
            queries=(
                Query(select("dsv41_step_seconds"), "{{service}} step"),
                Query(
                    f"{select('dsv41_step_law_intercept_seconds')} + on (node, service) "
                    f"{select('dsv41_step_law_slope_seconds')} * on (node, service) "
                    f"{total(select('sglang:num_running_reqs', DECODE), 'node', 'service')}",
                    "{{service}} law",
                ),
                Query(select("dsv41_step_law_slope_seconds"), "{{service}} b, per request"),
            ),
            width=6,
            alerts=("Dsv41StepLawGrew",),
        ),
        Panel(
            title="Graph hits",
            question="Which share of decode steps replays a captured graph?",
            reading="A batch larger than the largest captured one runs without. 0 where graphs are off.",
            kind="lines",
            unit="percentunit",
            queries=(
                Query(
                    "1 - "
                    + ratio(
                        total_rate("sglang:cuda_graph_passes_total", DECODE, 'mode="decode_none"', by=("service",)),
                        total_rate("sglang:cuda_graph_passes_total", DECODE, 'mode=~"decode_.*"', by=("service",)),
                    ),
                    "{{service}}",
                ),
            ),
            width=6,
            bounds=(0, 1),
            alerts=("Dsv41GraphMisses",),
        ),
        Panel(
            title="Bandwidth and tensor cores",
            question="How close are the GPUs to what they can do?",
            reading=(
                "Shares that the GPU itself counts (NVML, Hopper and newer). Decode is bound by memory bandwidth, prefill by "
                "tensor cores: low on both under load means waiting."
            ),
            kind="lines",
            unit="percentunit",
            queries=(
                Query(_of_engine("dsv41_gpu_memory_bandwidth_ratio"), "{{service}} memory bandwidth"),
                Query(_of_engine("dsv41_gpu_tensor_active_ratio"), "{{service}} tensor cores"),
            ),
            width=6,
            bounds=(0, 1),
            empty="no counters of a GPU",
        ),
        Panel(
            title="Speculation",
            question="How many drafted tokens does a verify step accept?",
            reading="Length counts the token that is always right; the cap is what the drafter may propose. 0: no speculation.",
            kind="lines",
            unit="short",
            queries=(
                Query(total(select("sglang:spec_accept_length", DECODE), "service"), "{{service}} accepted length"),
                Query(total(select("sglang:spec_accept_rate", DECODE), "service"), "{{service}} accepted share"),
                Query(total(select("sglang:spec_cap_length", DECODE), "service"), "{{service}} cap"),
            ),
            reach=1,
            width=8,
            alerts=("Dsv41AcceptanceDropped",),
        ),
        Panel(
            title="Tokens per second",
            question="What do the engines produce?",
            reading="Prompt tokens computed, prompt tokens taken from the cache, tokens decoded.",
            kind="lines",
            unit="short",
            queries=(Query(total_rate("sglang:realtime_tokens_total", ENGINE, by=("mode",)), "{{mode}}"),),
            width=8,
        ),
        Panel(
            title="Time of the schedulers",
            question="Is the engine busy with batches, or with everything around them?",
            reading="Shares of one second of each scheduler; idle is spare capacity.",
            kind="stack",
            unit="percentunit",
            queries=(
                Query(
                    total_rate("sglang:scheduler_stage_seconds_total", DECODE, 'tp_rank="0"', by=("category",)),
                    "{{category}}",
                ),
            ),
            width=8,
        ),
    ),
)
