"""The router and its clients."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import DECODE, ENGINE, buckets, or_zero, select, total, total_rate
from dsv41_serving.dashboards.promql import ROUTER as ROUTER_ROLE

_UP = f"sum({select('up', ROUTER_ROLE)})"

ROUTER = Row(
    title="Router and clients",
    panels=(
        Panel(
            title="Requests by route",
            question="What do clients ask for?",
            kind="lines",
            unit="reqps",
            queries=(Query(total_rate("smg_http_requests_total", by=("method", "path")), "{{method}} {{path}}"),),
            width=6,
        ),
        Panel(
            title="Answers by status",
            question="What do clients get?",
            reading="4xx is theirs, 5xx is ours.",
            kind="stack",
            unit="reqps",
            queries=(Query(total_rate("smg_http_responses_total", by=("status_code",)), "{{status_code}}"),),
            width=6,
            alerts=("Dsv41Errors", "Dsv41ErrorsLinger"),
        ),
        Panel(
            title="Answers by ending",
            question="How do answers end: by themselves, at their limit, aborted, empty?",
            reading="Counted by this project's plug-in in the engine, where a tool call ends by itself like any answer. Empty is a 200 that helps nobody.",
            kind="stack",
            unit="reqps",
            queries=(Query(total_rate("dsv41_answers_total", DECODE, by=("ending",)), "{{ending}}"),),
            width=6,
            alerts=("Dsv41EmptyAnswers", "Dsv41AnswersCutShort"),
        ),
        Panel(
            title="Requests in flight",
            question="How many requests does the router hold at each engine?",
            kind="lines",
            unit="short",
            queries=(Query(select("smg_worker_requests_active"), "{{worker}}"),),
            width=6,
        ),
        Panel(
            title="Circuits and retries",
            question="Has the router given an engine up, or does it try again?",
            reading="Circuit of each engine: 0 closed, 1 open, 2 half open.",
            kind="lines",
            unit="short",
            queries=(
                Query(select("smg_worker_cb_state"), "circuit {{worker}}"),
                Query(or_zero(total_rate("smg_worker_retries_total"), like=_UP), "retries/s"),
                Query(or_zero(total_rate("smg_worker_retries_exhausted_total"), like=_UP), "given up/s"),
            ),
            reach=2,
            width=8,
            steps=(Step(1, "red"),),
        ),
        Panel(
            title="Aborted requests",
            question="How many requests end because a client left or an engine gave up?",
            kind="lines",
            unit="reqps",
            queries=(
                Query(
                    or_zero(
                        total_rate("sglang:num_aborted_requests_total", by=("service",)),
                        like=total(select("up", ENGINE), "service"),
                    ),
                    "{{service}}",
                ),
            ),
            reach=1,
            width=8,
        ),
        Panel(
            title="Length of answers",
            question="Do answers suddenly come out empty, or all as long as they may be?",
            reading="Generated tokens per request. A row at the top edge means answers are cut off by their limit.",
            kind="heatmap",
            unit="short",
            queries=(Query(buckets("sglang:generation_tokens_histogram", DECODE), "{{le}}"),),
            width=8,
        ),
    ),
)
