"""What users feel, and the anatomy of one request."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import DECODE, PREFILL, STREAMED, buckets, mean, quantile, share_below

GOODPUT_BOUND = "0.02"


def _quantiles(histogram: str, *matchers: str, of: tuple[float, ...]) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, histogram, *matchers), f"p{round(q * 100)}") for q in of)


USERS = Row(
    title="What users feel",
    panels=(
        Panel(
            title="Time to first token",
            question="How long does a user look at an empty screen?",
            reading=(
                "Streamed requests only, seen at decode, hand-off included. Long prompts belong into the tail. A prompt counts "
                "as cached when at least half of it was: that curve is what a conversation feels, the other what a first question does."
            ),
            kind="lines",
            unit="s",
            queries=(
                *_quantiles("sglang:time_to_first_token_seconds", DECODE, STREAMED, of=(0.5, 0.95, 0.99)),
                Query(quantile(0.5, "dsv41_first_token_seconds", DECODE, 'prompt="cached"'), "p50, cached prompt"),
                Query(quantile(0.5, "dsv41_first_token_seconds", DECODE, 'prompt="uncached"'), "p50, new prompt"),
            ),
            width=8,
            steps=(Step(2, "yellow"), Step(10, "red")),
            alerts=("Dsv41FirstTokensLate", "Dsv41FirstTokensOftenLate"),
        ),
        Panel(
            title="Time between tokens",
            question="Does the text flow?",
            kind="lines",
            unit="s",
            queries=_quantiles("sglang:inter_token_latency_seconds", DECODE, of=(0.5, 0.99)),
            width=8,
            steps=(Step(0.05, "yellow"), Step(0.2, "red")),
            alerts=("Dsv41TokensLate", "Dsv41TokensOftenLate"),
        ),
        Panel(
            title="Time per output token",
            question="How fast is an answer as a whole, per token?",
            reading="One observation a request: (end to end - first token) / (tokens - 1).",
            kind="lines",
            unit="s",
            queries=_quantiles("sglang:request_time_per_output_token_seconds", DECODE, of=(0.5, 0.99)),
            width=8,
            steps=(Step(0.02, "yellow"), Step(0.1, "red")),
        ),
        Panel(
            title="End to end",
            question="How long do whole requests take?",
            kind="heatmap",
            unit="s",
            queries=(Query(buckets("sglang:e2e_request_latency_seconds", DECODE), "{{le}}"),),
            width=8,
        ),
        Panel(
            title="Queue time p95",
            question="How long does a request wait before an engine takes it up?",
            kind="lines",
            unit="s",
            queries=(
                Query(quantile(0.95, "sglang:queue_time_seconds", PREFILL, by=("service",)), "{{service}}"),
                Query(quantile(0.95, "sglang:queue_time_seconds", 'role="decode"', by=("service",)), "{{service}}"),
            ),
            width=8,
            steps=(Step(1, "yellow"), Step(10, "red")),
        ),
        Panel(
            title="Goodput",
            question="Which share of requests runs at 50 tokens per second or better?",
            reading="Requests whose time per output token is at most 20 ms.",
            kind="lines",
            unit="percentunit",
            queries=(
                Query(
                    share_below(GOODPUT_BOUND, "sglang:request_time_per_output_token_seconds", DECODE), "at most 20 ms"
                ),
            ),
            width=8,
            bounds=(0, 1),
            base="red",
            steps=(Step(0.5, "yellow"), Step(0.9, "green")),
        ),
    ),
)

_STAGES = (
    ("find decode", mean("sglang:per_stage_req_latency_seconds", 'stage="prefill_bootstrap"')),
    ("wait for prefill", mean("sglang:queue_time_seconds", PREFILL)),
    ("prefill", mean("sglang:per_stage_req_latency_seconds", 'stage="prefill_forward"')),
    ("hand over KV", mean("sglang:per_stage_req_latency_seconds", 'stage="prefill_transfer_kv_cache"')),
    ("wait for decode", mean("sglang:per_stage_req_latency_seconds", 'stage="decode_waiting"')),
)

ANATOMY = Row(
    title="Anatomy of a request",
    panels=(
        Panel(
            title="Where the time goes",
            question="Which stage of a request became slower?",
            reading=(
                "Mean per request of stages that follow one another; their sum is close to the time to first token. Decode "
                "waits for the hand-off while prefill computes, so its own stages of that time are left out."
            ),
            kind="stack",
            unit="s",
            queries=tuple(Query(expr, stage) for stage, expr in _STAGES),
            width=14,
        ),
        Panel(
            title="First token, stage by stage",
            question="What does a user wait for right now?",
            reading="The same stages; the widest bar is where to look first.",
            kind="bars",
            unit="s",
            queries=tuple(Query(expr.replace("$__rate_interval", "5m"), stage) for stage, expr in _STAGES),
            width=10,
            base="blue",
        ),
    ),
)
