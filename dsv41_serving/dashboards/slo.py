"""The SLO board: budgets and how fast they burn, canary and contract history, what a release changed."""

from __future__ import annotations

from dataclasses import dataclass

from dsv41_serving.dashboards.annotations import ANNOTATIONS
from dsv41_serving.dashboards.panel import Board, Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import DECODE, ROUTER, STREAMED, equals, or_zero, ratio, select

BUDGET_WINDOW = "24h"
_SERVER_ERROR = 'status_code=~"5.."'
_FAST, _SLOW = "5m", "1h"


@dataclass(frozen=True)
class Objective:
    """A promise to users: at least `target` of all events are good. `bad` and `all` are counters per event."""

    title: str
    promise: str
    target: float
    all: str
    bad: str
    """Rate expressions with `{window}` in place of the range."""
    alerts: tuple[str, ...]

    def bad_share(self, window: str) -> str:
        """Return the share of bad events over `window`."""
        return ratio(f"({self.bad.replace('{window}', window)})", self.all.replace("{window}", window))

    def budget_left(self) -> str:
        """Return the share of the budget that is left: 1 untouched, 0 used up, negative overdrawn."""
        return f"1 - ({self.bad_share(BUDGET_WINDOW)}) / {1 - self.target:.4g}"

    def burn(self, window: str) -> str:
        """Return how many times faster than allowed the budget burns; at 1 it lasts exactly as long as promised."""
        return f"({self.bad_share(window)}) / {1 - self.target:.4g}"


def _within(
    title: str, histogram: str, *matchers: str, bound: str, target: float, alerts: tuple[str, ...]
) -> Objective:
    count = f"sum(rate({select(f'{histogram}_count', *matchers)}[{{window}}]))"
    good = f"sum(rate({select(f'{histogram}_bucket', *matchers, equals('le', bound))}[{{window}}]))"
    return Objective(
        title=title,
        promise=f"{target:.1%} within {float(bound):g} s",
        target=target,
        all=count,
        bad=f"{count} - {good}",
        alerts=alerts,
    )


_ROUTER_UP = f"sum({select('up', ROUTER)})"
OBJECTIVES = (
    Objective(
        title="Errors",
        promise="99.5% of requests are answered without a 5xx",
        target=0.995,
        all=f"sum(rate({select('smg_http_responses_total')}[{{window}}]))",
        bad=or_zero(f"sum(rate({select('smg_http_responses_total', _SERVER_ERROR)}[{{window}}]))", like=_ROUTER_UP),
        alerts=("ErrorBurnFast", "ErrorBurnSlow"),
    ),
    _within(
        "First token",
        "sglang:time_to_first_token_seconds",
        DECODE,
        STREAMED,
        bound="10.0",
        target=0.95,
        alerts=("TtftBurnFast", "TtftBurnSlow"),
    ),
    _within(
        "Between tokens",
        "sglang:inter_token_latency_seconds",
        DECODE,
        bound="0.2",
        target=0.99,
        alerts=("ItlBurnFast", "ItlBurnSlow"),
    ),
)

BUDGETS = Row(
    title=f"Budget left, last {BUDGET_WINDOW}",
    height=4,
    panels=(
        *(
            Panel(
                title=objective.title,
                question=f"Is the promise kept: {objective.promise}?",
                reading="1 means untouched, 0 used up.",
                kind="stat",
                unit="percentunit",
                queries=(Query(objective.budget_left(), "left"),),
                width=6,
                decimals=1,
                base="red",
                steps=(Step(0, "orange"), Step(0.25, "yellow"), Step(0.5, "green")),
                alerts=objective.alerts,
            )
            for objective in OBJECTIVES
        ),
        Panel(
            title="Canary",
            question=f"Which share of canary conversations went well in the last {BUDGET_WINDOW}?",
            kind="stat",
            unit="percentunit",
            queries=(
                Query(
                    "1 - "
                    + ratio(
                        f"sum(increase({select('dsv41_canary_failures_total')}[{BUDGET_WINDOW}]))",
                        f"sum(increase({select('dsv41_canary_runs_total')}[{BUDGET_WINDOW}]))",
                    ),
                    "passed",
                ),
            ),
            width=6,
            decimals=1,
            base="red",
            steps=(Step(0.98, "yellow"), Step(0.999, "green")),
            alerts=("CanaryFailing",),
        ),
    ),
)

BURN = Row(
    title="How fast it burns",
    panels=tuple(
        Panel(
            title=f"{objective.title}: burn",
            question="How many times faster than the promise allows is the budget being used?",
            reading=f"Promise: {objective.promise}. At 1 the budget lasts exactly; both windows high means it is going on now.",
            kind="lines",
            unit="short",
            queries=(Query(objective.burn(_FAST), "5 minutes"), Query(objective.burn(_SLOW), "1 hour")),
            width=8,
            steps=(Step(6, "yellow"), Step(14.4, "red")),
            alerts=objective.alerts,
        )
        for objective in OBJECTIVES
    ),
)

PROMISES = Row(
    title="Canary and contract",
    panels=(
        Panel(
            title="Canary steps",
            question="Which step of the canary failed, and when?",
            reading="1 passed, 0 failed.",
            kind="lines",
            unit="short",
            queries=(Query(select("dsv41_canary_step_passed"), "{{step}}"),),
            width=8,
            bounds=(0, 1),
            alerts=("CanaryFailing",),
        ),
        Panel(
            title="Canary time",
            question="Does the same short conversation take longer than it did?",
            kind="lines",
            unit="s",
            queries=(
                Query(select("dsv41_canary_seconds"), "whole run"),
                Query(select("dsv41_canary_first_token_seconds"), "first token"),
            ),
            width=8,
        ),
        Panel(
            title="Contract clauses missed",
            question="Which clauses of the contract are not kept?",
            reading="Name, thinking, sampling, tools. The contract watch judges them.",
            kind="lines",
            unit="short",
            queries=(
                Query(
                    f"count({select('dsv41_contract_clause_kept')} == 0) or 0 * count({select('dsv41_contract_clause_kept')})",
                    "missed",
                ),
                Query(f"sum({select('dsv41_contract_drifted_items')})", "facts that drifted"),
            ),
            width=8,
            steps=(Step(1, "red"),),
            alerts=("ContractDrift",),
        ),
    ),
)

RELEASES = Row(
    title="What a release changed",
    panels=(
        Panel(
            title="Accepted length",
            question="Does speculation accept as much as before the release?",
            kind="lines",
            unit="short",
            queries=(Query(f"avg({select('sglang:spec_accept_length', DECODE)})", "accepted length"),),
            width=8,
            alerts=("AcceptanceDropped",),
        ),
        Panel(
            title="Hit ratio",
            question="Does the cache serve as much as before the release?",
            kind="lines",
            unit="percentunit",
            queries=(Query(select("dsv41:cache_hit:ratio"), "from cache"),),
            width=8,
            bounds=(0, 1),
            alerts=("HitRatioCollapsed",),
        ),
        Panel(
            title="Work",
            question="Is more or less asked of the node than usual?",
            kind="lines",
            unit="short",
            queries=(
                Query(select("dsv41:prompt_tokens:rate"), "prompt tokens/s"),
                Query(select("dsv41:generated_tokens:rate"), "generated tokens/s"),
            ),
            width=8,
        ),
    ),
)

BOARD = Board(
    uid="dsv41-slo",
    title="DeepSeek-V4.1: promises",
    description="Are the promises to users kept, and how long will the budgets last?",
    rows=(BUDGETS, BURN, PROMISES, RELEASES),
    annotations=ANNOTATIONS,
    range="now-24h",
)
