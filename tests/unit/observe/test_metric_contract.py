"""Everything that is asked for exists: boards, rules and documents against the recorded pages of the pinned parts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv41_serving.exporter.metrics import METRICS
from dsv41_serving.observe.known_metrics import family_names, known_metrics
from dsv41_serving.observe.metric_contract import UNSEEN, Contract
from dsv41_serving.plan.monitoring import fill_rules
from dsv41_serving.spec.monitoring import Monitoring

REPOSITORY = Path(__file__).parents[3]
MONITORING = REPOSITORY / "monitoring"
PAGES = MONITORING / "metrics"
BOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
RULES = sorted((MONITORING / "rules").glob("*.yml"))
_NAME = re.compile(r"\b(?:sglang:|smg_|dsv41_|dsv41:)[a-z0-9_:]+\b(?![-/.])")


def read_groups(path: Path) -> list[dict[str, Any]]:
    """Return the groups of a rule file as a node with default values gets it."""
    groups: list[dict[str, Any]] = yaml.safe_load(fill_rules(path.read_text(encoding="utf-8"), Monitoring()))["groups"]
    return groups


@pytest.fixture(scope="module")
def contract() -> Contract:
    """The contract with every recording rule known; rules that read other rules come after them."""
    made = Contract(known_metrics(PAGES))
    problems = []
    ordered = sorted(RULES, key=lambda path: path.name != "recording.yml")
    for path in ordered:
        for group in read_groups(path):
            for rule in group["rules"]:
                if "record" in rule:
                    found = made.add_rule(rule["record"], rule["expr"], rule.get("labels", {}))
                    problems += [f"{path.name}, {rule['record']}: {problem}" for problem in found]
    assert problems == []
    return made


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_alerts_ask_for_what_exists(contract: Contract, path: Path) -> None:
    problems = [
        f"{rule['alert']}: {problem}"
        for group in read_groups(path)
        for rule in group["rules"]
        if "alert" in rule
        for problem in contract.judge(rule["expr"])
    ]
    assert problems == []


def _expressions(node: Any, where: str = "") -> list[tuple[str, str]]:
    """Return (panel title, expression) of everything in a board that is a query."""
    found = []
    if isinstance(node, dict):
        where = str(node.get("title") or node.get("name") or where)
        if isinstance(node.get("expr"), str):
            found.append((where, node["expr"]))
        for value in node.values():
            found += _expressions(value, where)
    elif isinstance(node, list):
        for value in node:
            found += _expressions(value, where)
    return found


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_ask_for_what_exists(contract: Contract, path: Path) -> None:
    expressions = _expressions(json.loads(path.read_text(encoding="utf-8")))
    assert expressions
    problems = [f"{where}: {problem}" for where, text in expressions for problem in contract.judge(text)]
    assert problems == []


def test_documents_name_what_exists(contract: Contract) -> None:
    known = family_names(contract._known)
    beginnings = {"_".join(name.split("_")[:2]) + "_" for name in known if name.startswith("dsv41_")}
    files = subprocess.run(["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    strange = [
        f"{name}: {found}"
        for name in files.stdout.splitlines()
        for found in _NAME.findall((REPOSITORY / name).read_text(encoding="utf-8"))
        # Modules are spelled like metrics: of ours, only what begins as a metric does is one. `sglang::` is a namespace of C++.
        if found.rstrip("_:") not in known
        and found.startswith(("sglang:", "smg_", "dsv41:", *beginnings))
        and not found.startswith("sglang::")
    ]
    assert strange == []


def test_alerts_and_boards_use_what_the_exporter_makes() -> None:
    """In the other direction: a metric that nobody looks at is not worth a scrape."""
    asked = " ".join(path.read_text(encoding="utf-8") for path in (*RULES, *BOARDS, MONITORING / "runbook.md"))
    unused = [metric.name for metric in METRICS if not re.search(rf"\b{metric.name}\b", asked)]
    assert unused == []


def test_rules_ask_both_routers_for_what_both_have() -> None:
    """The router is chosen in the node file, the rules are the same."""
    asked = {name for path in RULES for name in re.findall(r"\bsmg_[a-z_]+\b", path.read_text(encoding="utf-8"))}
    assert asked
    for router in ("smg", "sglang-router"):
        page = (PAGES / f"router-{router}-load.prom").read_text(encoding="utf-8")
        assert {name for name in asked if f"\n{name}{{" not in page} == set(), router


def test_every_exception_is_still_one(contract: Contract) -> None:
    """A value that is recorded by now needs no excuse."""
    seen = {
        (label, value)
        for series in contract._known.values()
        for label, values in series.values.items()
        for value in values
    }
    assert [pair for pair in UNSEEN if pair in seen] == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sglang:num_retracted_reqs_total", "there is no metric sglang:num_retracted_reqs_total; did you mean"),
        ("sglang:kv_used_token", "did you mean sglang:kv_used_tokens?"),
        ('sglang:kv_used_tokens{rank="0"}', "sglang:kv_used_tokens has no label 'rank'"),
        ("rate(sglang:kv_used_tokens[5m])", "rate(sglang:kv_used_tokens): it is a gauge"),
        ("deriv(sglang:prompt_tokens_total[5m])", "deriv(sglang:prompt_tokens_total): it is a counter"),
        ("sum by (gpu) (sglang:kv_used_tokens)", "by (gpu): no such label"),
        ("dsv41_gpu_throttled * on (service) dsv41_service_ready", "on (service): no such label on the left"),
        (
            "histogram_quantile(0.5, sum by (node) (rate(sglang:kv_transfer_speed_gb_s_bucket[5m])))",
            "histogram_quantile without le",
        ),
        ('sglang:prefill_effective_tokens_total{mode="hit"}', "was never seen with mode=hit"),
        ("sum(sglang:kv_used_tokens", "does not parse"),
        ("sglang:kv_transfer_speed_gb_s", "there is no metric sglang:kv_transfer_speed_gb_s; did you mean"),
    ],
)
def test_a_mistake_is_found(contract: Contract, expression: str, problem: str) -> None:
    assert any(problem in found for found in contract.judge(expression)), contract.judge(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'histogram_quantile(0.99, sum by (le) (rate(sglang:kv_transfer_speed_gb_s_bucket{node=~"$node"}[$__rate_interval])))',
        'sum by (service) (sglang:kv_used_tokens{service=~"${service:regex}"}) / on (service) dsv41_kv_planned_bytes_per_token',
        "increase(sglang:num_transfer_failed_reqs_total[1h]) or vector(0)",
        "max_over_time(rate(sglang:prompt_tokens_total[1m])[1h:1m])",
    ],
)
def test_a_sound_expression_passes(contract: Contract, expression: str) -> None:
    assert contract.judge(expression) == []
