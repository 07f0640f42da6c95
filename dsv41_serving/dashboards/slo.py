"""The SLO board: budgets and how fast they burn, canary and contract history, what a release changed.

Objectives are those of the node (`monitoring.objective` and its bounds); recording rules turn them into burn rates, and the burn
alerts read the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv41_serving.dashboards.annotations import ANNOTATIONS
from dsv41_serving.dashboards.panel import Board, Panel, Query, Row, Step
from dsv41_serving.dashboards.promql import DECODE, select

BUDGET_WINDOW = "24h"


@dataclass(frozen=True)
class Objective:
    """A promise to users and the recording rules that measure it."""

    title: str
    promise: str
    burn: str
    """Stem of the rules `dsv41:STEM_burn:rateWINDOW`: how many times faster than allowed the budget is used."""
    alerts: tuple[str, ...]

    def burn_rate(self, window: str) -> str:
        """Return the burn rate over `window`: 5m, 30m, 1h or 6h."""
        return select(f"dsv41:{self.burn}_burn:rate{window}")

    def budget_left(self) -> str:
        """Return the share of the budget that is left: 1 untouched, 0 used up, -1 overdrawn twice or more."""
        return f"clamp_min(min(1 - avg_over_time({self.burn_rate('5m')}[{BUDGET_WINDOW}])), -1)"


OBJECTIVES = (
    Objective("Errors", "requests are answered without a 5xx", "error", ("Dsv41Errors", "Dsv41ErrorsLinger")),
    Objective(
        "First token",
        "the first token comes in time",
        "first_token",
        ("Dsv41FirstTokensLate", "Dsv41FirstTokensOftenLate"),
    ),
    Objective(
        "Between tokens", "the next token comes in time", "between_tokens", ("Dsv41TokensLate", "Dsv41TokensOftenLate")
    ),
)

BUDGETS = Row(
    title=f"Budget left, last {BUDGET_WINDOW}",
    height=4,
    panels=(
        *(
            Panel(
                title=objective.title,
                question=f"How much of the promise that {objective.promise} may still be broken?",
                reading=f"100% is untouched, 0% used up; the mean burn of the last {BUDGET_WINDOW}, idle time left out.",
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
            question=f"Which share of the last {BUDGET_WINDOW} had a canary that passed?",
            kind="stat",
            unit="percentunit",
            queries=(Query(f"min(avg_over_time({select('dsv41_canary_passed')}[{BUDGET_WINDOW}]))", "passed"),),
            width=6,
            decimals=1,
            base="red",
            steps=(Step(0.98, "yellow"), Step(0.999, "green")),
            alerts=("Dsv41CanaryFailing",),
        ),
    ),
)

BURN = Row(
    title="How fast it burns",
    panels=tuple(
        Panel(
            title=f"{objective.title}: burn",
            question="How many times faster than the promise allows is the budget being used?",
            reading=f"Promise: {objective.promise}. At 1 the budget lasts exactly; both windows high means it goes on now.",
            kind="lines",
            unit="short",
            queries=(Query(objective.burn_rate("5m"), "5 minutes"), Query(objective.burn_rate("1h"), "1 hour")),
            reach=16,
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
            width=6,
            bounds=(0, 1),
            alerts=("Dsv41CanaryFailing",),
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
            width=6,
        ),
        Panel(
            title="Canary runs",
            question="Does the canary run as often as planned, and how often does it fail?",
            kind="lines",
            unit="short",
            queries=(
                Query(f"increase({select('dsv41_canary_runs_total')}[1h])", "runs in 1 h"),
                Query(f"increase({select('dsv41_canary_failures_total')}[1h])", "failed"),
            ),
            width=6,
            alerts=("Dsv41CanaryFailing", "Dsv41CanaryStale"),
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
            reach=2,
            width=6,
            steps=(Step(1, "red"),),
            alerts=("Dsv41ContractBroken", "Dsv41ContractDrift"),
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
            alerts=("Dsv41AcceptanceDropped",),
        ),
        Panel(
            title="Hit ratio",
            question="Does the cache serve as much as before the release?",
            kind="lines",
            unit="percentunit",
            queries=(Query(select("dsv41:cache_hit:ratio"), "from cache"),),
            width=8,
            bounds=(0, 1),
            alerts=("Dsv41CacheHitsCollapsed",),
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
