"""First row: how full the KV pools are, when they will be exhausted, and whether requests work."""

from __future__ import annotations

from dsv41_serving.dashboards.panel import Panel, Query, Row, Step, Word
from dsv41_serving.dashboards.promql import DECODE, ENGINE, PREFILL, ROUTER, equals, select, total

DAY_S = 86400
READY = (Word(1, "ready", "green"), Word(0, "NOT READY", "red"))
PASSED = (Word(1, "passes", "green"), Word(0, "FAILS", "red"))
GOOD_AT_1 = (Step(1, "green"),)


_TOLD = 'severity!="info"'
# By name, so that two services with one trouble are one line; when nothing fires, a series that says so.
_FIRING = f"max by (alertname) ({select('ALERTS', equals('alertstate', 'firing'), _TOLD)})"
_NOTHING = f'label_replace(0 * max({select("up")}), "alertname", "nothing fires", "", "")'


def _ready(title: str, role: str, alerts: tuple[str, ...]) -> Panel:
    return Panel(
        title=title,
        question=f"Is {title.lower()} past its gate, with its process alive?",
        kind="state",
        unit="short",
        queries=(Query(f"min({select('dsv41_service_ready', role)})", title),),
        width=2,
        height=3,
        base="red",
        steps=GOOD_AT_1,
        words=READY,
        alerts=alerts,
    )


def _canary_step(title: str, step: str, question: str, alert: str = "Dsv41CanaryFailing") -> Panel:
    return Panel(
        title=title,
        question=question,
        kind="state",
        unit="short",
        queries=(Query(f"min({select('dsv41_canary_step_passed', equals('step', step))})", title),),
        width=3,
        height=3,
        base="red",
        steps=GOOD_AT_1,
        words=PASSED,
        alerts=(alert,),
    )


NOW = Row(
    title="Now: KV memory, and is it serving?",
    height=6,
    panels=(
        Panel(
            title="KV fullness",
            question="How full is each KV pool with tokens that cannot be evicted?",
            reading=(
                "Full-attention and window (SWA) pools stand apart for each engine: whichever fills first stops new "
                "requests, and SGLang's own token_usage is the larger of the two and hides which one that is. Cached "
                "prefixes nobody uses count as free."
            ),
            kind="bars",
            unit="percentunit",
            queries=(Query(f"sort_desc(1 - {select('dsv41:kv_free:ratio')})", "{{service}}, {{pool}} pool"),),
            width=8,
            decimals=1,
            bounds=(0, 1),
            steps=(Step(0.8, "yellow"), Step(0.95, "red")),
            alerts=("Dsv41KvPoolFull", "Dsv41WindowPoolFull"),
        ),
        Panel(
            title="KV exhausted in",
            question="If the pools go on filling as over the last minutes, when is the first one full?",
            kind="stat",
            unit="s",
            queries=(Query(f"min(clamp_max({select('dsv41_kv_exhaustion_seconds')}, {DAY_S}))", "first pool"),),
            width=4,
            base="red",
            steps=(Step(600, "yellow"), Step(3600, "green")),
            words=(Word(DAY_S, "not filling", "green"),),
            alerts=("Dsv41KvExhaustion",),
        ),
        Panel(
            title="Requests in the engines",
            question="How many requests run, and how many wait?",
            kind="stat",
            unit="short",
            queries=(
                Query(total(select("sglang:num_running_reqs", ENGINE)), "running"),
                Query(total(select("sglang:num_queue_reqs", ENGINE)), "waiting"),
            ),
            says="both",
            width=4,
            base="text",
            alerts=("Dsv41QueueStuck",),
        ),
        Panel(
            title="Alerts",
            question="What is wrong, and what is to be done?",
            reading="`dsv41 explain NAME` gathers what the runbook asks for.",
            kind="stat",
            unit="short",
            queries=(Query(f"{_FIRING} or on () {_NOTHING}", "{{alertname}}"),),
            width=5,
            says="name",
            steps=(Step(1, "red"),),
        ),
        Panel(
            title="Error budget left",
            question="How much of what the objective allows may still go wrong?",
            reading="The mean burn of the last 24 hours; the SLO board has the other budgets.",
            kind="stat",
            unit="percentunit",
            queries=(
                Query(f"clamp_min(min(1 - avg_over_time({select('dsv41:error_burn:rate5m')}[24h])), -1)", "left"),
            ),
            width=3,
            decimals=1,
            base="red",
            steps=(Step(0, "orange"), Step(0.25, "yellow"), Step(0.5, "green")),
            alerts=("Dsv41Errors", "Dsv41ErrorsLinger"),
        ),
        Panel(
            title="Last canary",
            question="How long ago did the canary hold its conversation?",
            reading="An old answer is no answer: judge the tiles below by this age.",
            kind="stat",
            unit="s",
            queries=(Query(f"time() - max({select('dsv41_canary_timestamp_seconds')})", "age"),),
            width=3,
            height=3,
            steps=(Step(600, "yellow"), Step(1800, "red")),
            alerts=("Dsv41CanaryStale",),
        ),
        _canary_step("Answer", "answer", "Did a real conversation through the router get the right answer?"),
        _canary_step("Thinking", "thinking", "Does the model think before it answers, as the contract says?"),
        _canary_step(
            "Tool call", "tool_call", "Does a tool call arrive complete and well formed?", "Dsv41ToolCallsMalformed"
        ),
        _ready("Prefill", PREFILL, ("Dsv41ServiceDown", "Dsv41HalfAPair")),
        _ready("Decode", DECODE, ("Dsv41ServiceDown", "Dsv41HalfAPair")),
        _ready("Router", ROUTER, ("Dsv41ServiceDown",)),
        Panel(
            title="Release",
            question="Which release serves?",
            kind="stat",
            unit="string",
            queries=(Query(select("dsv41_release_info"), "{{release}}"),),
            width=4,
            height=3,
            base="text",
            says="name",
            alerts=("Dsv41ReleaseDrift",),
        ),
        Panel(
            title="Drift",
            question="How many served facts differ from the accepted ones?",
            kind="stat",
            unit="short",
            queries=(Query(f"sum({select('dsv41_contract_drifted_items')})", "items"),),
            width=2,
            height=3,
            steps=(Step(1, "red"),),
            alerts=("Dsv41ContractDrift",),
        ),
    ),
)
