"""The hand-off of KV from prefill to decode: speed against the link, size, waiting, failures, lane."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import (
    DECODE,
    ENGINE,
    PREFILL,
    buckets,
    mean,
    or_zero,
    quantile,
    ratio,
    select,
    total,
    total_rate,
)

NO_NIXL = "no counters of NIXL (monitoring.nixl)"
_UP = total(select("up", ENGINE), "service")
_MIB_PER_MS_IN_GB_PER_S = "1.048576"

HAND_OFF = Row(
    title="KV hand-off",
    panels=(
        Panel(
            title="Hand-off speed",
            question="Does the hand-off run at the speed of the link?",
            reading=(
                "Per request, seen at prefill, and per transfer, counted by NIXL itself. Means are bytes over time. Blocks of "
                "a pool never reach the speed of the link; `dsv41 transport prove` measures both. The lowest bucket of the "
                "quantiles ends at 0.1 GB/s: below it only the means tell the truth."
            ),
            kind="lines",
            unit="GBs",
            queries=(
                Query(quantile(0.5, "sglang:kv_transfer_speed_gb_s", PREFILL), "p50"),
                Query(quantile(0.1, "sglang:kv_transfer_speed_gb_s", PREFILL), "p10"),
                Query(
                    f"{_MIB_PER_MS_IN_GB_PER_S} * "
                    + ratio(
                        total_rate("sglang:kv_transfer_total_mb_sum", PREFILL),
                        total_rate("sglang:kv_transfer_latency_ms_sum", PREFILL),
                    ),
                    "mean",
                ),
                Query(
                    ratio(
                        total_rate("agent_tx_bytes_total", PREFILL),
                        total_rate("agent_xfer_time_us_sum", PREFILL),
                    )
                    + " / 1000",
                    "one transfer, by NIXL",
                ),
                Query(f"max({select('dsv41_handoff_prompt_gb_s')})", "what a prompt's blocks can do"),
                Query(f"max({select('dsv41_handoff_baseline_gb_s')})", "what the link can do"),
            ),
            width=8,
            bounds=(None, None),
            logarithmic=True,
            alerts=("Dsv41HandoffSlow",),
        ),
        Panel(
            title="Size of a hand-off",
            question="How much KV does one request move?",
            kind="heatmap",
            unit="mbytes",
            queries=(Query(buckets("sglang:kv_transfer_total_mb", PREFILL), "{{le}}"),),
            width=8,
        ),
        Panel(
            title="Bootstrap and allocation p95",
            question="How long do prefill and decode need to agree before bytes move?",
            kind="lines",
            unit="ms",
            queries=(
                Query(quantile(0.95, "sglang:kv_transfer_bootstrap_ms", by=("service",)), "{{service}} bootstrap"),
                Query(quantile(0.95, "sglang:kv_transfer_alloc_ms", by=("service",)), "{{service}} allocation"),
            ),
            width=8,
            steps=(Step(1000, "yellow"), Step(10000, "red")),
        ),
        Panel(
            title="Requests between the engines",
            question="Where do requests pile up on their way from prefill to decode?",
            reading="A queue that stays above zero while decode makes no tokens is stuck.",
            kind="lines",
            unit="short",
            queries=(
                Query(total(select("sglang:num_prefill_bootstrap_queue_reqs", PREFILL)), "prefill: looks for decode"),
                Query(total(select("sglang:num_prefill_inflight_queue_reqs", PREFILL)), "prefill: sends"),
                Query(total(select("sglang:num_decode_prealloc_queue_reqs", DECODE)), "decode: waits for memory"),
                Query(total(select("sglang:num_decode_transfer_queue_reqs", DECODE)), "decode: receives"),
            ),
            reach=1,
            width=8,
            alerts=("Dsv41HandoffStuck",),
        ),
        Panel(
            title="Failures and late releases",
            question="Do hand-offs fail, or leave memory behind?",
            kind="lines",
            unit="short",
            queries=(
                Query(
                    or_zero(total_rate("sglang:num_bootstrap_failed_reqs_total", by=("service",)), like=_UP),
                    "{{service}} bootstrap failed/s",
                ),
                Query(
                    or_zero(total_rate("sglang:num_transfer_failed_reqs_total", by=("service",)), like=_UP),
                    "{{service}} transfer failed/s",
                ),
                Query(
                    or_zero(total_rate("sglang:num_prefill_retries_total", by=("service",)), like=_UP),
                    "{{service}} retries/s",
                ),
                Query(
                    total(select("sglang:num_decode_deferred_kv_release_reqs", DECODE)), "decode: releases outstanding"
                ),
            ),
            reach=1,
            width=8,
            steps=(Step(0.1, "red"),),
            alerts=("Dsv41HandoffFailing",),
        ),
        Panel(
            title="Lane",
            question="Which transport carries the hand-off?",
            reading="As `dsv41 transport prove` saw it. tcp where another lane was planned costs an order of magnitude.",
            kind="stat",
            unit="string",
            queries=(Query(select("dsv41_handoff_lane_info"), "{{lane}}"),),
            width=8,
            base="text",
            says="name",
            empty="nobody measured it: dsv41 transport prove",
            alerts=("Dsv41LaneIsTcp",),
        ),
        Panel(
            title="Bytes by rank, from NIXL",
            question="Does every rank send its share?",
            reading=(
                "NIXL's own count at the engine that writes. With tensor parallelism all ranks send alike: one that lags "
                "behind has another lane than the others."
            ),
            kind="lines",
            unit="Bps",
            queries=(
                Query(
                    total_rate("agent_tx_bytes_total", by=("service", "local_rank")), "{{service}} rank {{local_rank}}"
                ),
            ),
            width=8,
            empty=NO_NIXL,
        ),
        Panel(
            title="Time of a transfer, from NIXL",
            question="How long does one transfer take, and how many are there?",
            reading="From its start to the moment at which NIXL is asked and finds it done. A request is one transfer or several.",
            kind="lines",
            unit="s",
            queries=(
                Query(quantile(0.5, "agent_xfer_time_us", PREFILL) + " / 1e6", "p50"),
                Query(quantile(0.95, "agent_xfer_time_us", PREFILL) + " / 1e6", "p95"),
                Query(total_rate("agent_tx_requests_num_total", PREFILL), "transfers/s (right)", right=True),
            ),
            width=8,
            empty=NO_NIXL,
        ),
        Panel(
            title="Errors, from NIXL",
            question="What does NIXL itself report as wrong?",
            reading="By NIXL's status. Events dropped: its counters are then too low.",
            kind="lines",
            unit="short",
            queries=(
                Query(total_rate("agent_errors_total", by=("service", "status")) + " > 0", "{{service}} {{status}}/s"),
                Query(
                    total_rate("agent_telemetry_events_dropped_total", by=("service",)), "{{service}} events dropped/s"
                ),
            ),
            reach=1,
            width=8,
            steps=(Step(0.1, "red"),),
            empty=NO_NIXL,
            alerts=("Dsv41NixlErrors",),
        ),
        Panel(
            title="Where a hand-off spends its time",
            question="Which stage of a hand-off takes the time?",
            reading=(
                "Means per request and rank; the chunks of a request are added up. Decode's `receive` is left out, the whole prefill is "
                "in it. `dsv41 bench handoff` measures one request at a time."
            ),
            kind="stack",
            unit="s",
            queries=(
                Query(
                    mean("dsv41_handoff_stage_seconds", ENGINE, 'stage!="receive"', by=("role", "stage")),
                    "{{role}} {{stage}}",
                ),
            ),
            width=12,
        ),
        Panel(
            title="Blocks of a hand-off",
            question="How many blocks does NIXL move for one request, and do requests go packed?",
            reading="Between two H200s a block costs about 7.5 us, whatever its size. A packed hand-off needs a handful.",
            kind="lines",
            unit="short",
            queries=(
                Query(mean("dsv41_handoff_descriptors", PREFILL), "blocks"),
                Query(total_rate("dsv41_handoff_transfers_total", PREFILL, by=("path",)), "{{path}}/s", right=True),
                Query(
                    total_rate("dsv41_handoff_fallbacks_total", ENGINE, by=("reason",)),
                    "not packed: {{reason}}/s",
                    right=True,
                ),
                Query(total(select("dsv41_handoff_slots_busy", PREFILL)), "slots in use", right=True),
            ),
            width=12,
        ),
    ),
)
