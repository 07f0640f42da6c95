"""The alert rules: valid for promtool, each tested at its boundary and where it must stay quiet, each in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv41_serving.observe.runbook import find_section, read_runbook
from dsv41_serving.plan.monitoring import fill_rules
from dsv41_serving.spec.monitoring import Monitoring

MONITORING = Path(__file__).parents[3] / "monitoring"
RULES = sorted((MONITORING / "rules").glob("*.yml"))
TESTS = sorted((MONITORING / "rules" / "tests").glob("*.yml"))
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed; enable with: apt-get install prometheus"
)


def _groups(path: Path) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return groups


ALERTS = {
    rule["alert"]: rule for path in RULES for group in _groups(path) for rule in group["rules"] if "alert" in rule
}
CASES: dict[str, list[dict[str, Any]]] = {}
for test_file in TESTS:
    for case in yaml.safe_load(test_file.read_text(encoding="utf-8"))["tests"]:
        CASES.setdefault(case["alert_rule_test"][0]["alertname"], []).append(case)


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules with the default objectives, and the tests beside them as in the repository."""
    room = tmp_path_factory.mktemp("rules")
    (room / "tests").mkdir()
    for path in RULES:
        (room / path.name).write_text(fill_rules(path.read_text(encoding="utf-8"), Monitoring()), encoding="utf-8")
    for path in TESTS:
        shutil.copy(path, room / "tests")
    return room


@needs_promtool
def test_rules_are_valid(rendered: Path) -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", *map(str, sorted(rendered.glob("*.yml")))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_and_stay_quiet(rendered: Path, path: Path) -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", str(rendered / "tests" / path.name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_every_alert_is_tested_where_it_fires_where_it_does_not_and_in_between(alert: str) -> None:
    cases = CASES.get(alert, [])
    firing = [case for case in cases if any(check["exp_alerts"] for check in case["alert_rule_test"])]
    quiet = [case for case in cases if not any(check["exp_alerts"] for check in case["alert_rule_test"])]
    assert firing
    assert quiet
    if "for" in ALERTS[alert]:
        before, at = firing[0]["alert_rule_test"]
        step = _seconds(firing[0]["interval"])
        assert not before["exp_alerts"]
        assert at["exp_alerts"]
        assert _seconds(at["eval_time"]) - _seconds(before["eval_time"]) == step


def test_no_test_is_of_an_alert_that_is_gone() -> None:
    assert set(CASES) == set(ALERTS)


def test_runbook_and_rules_name_the_same_alerts() -> None:
    assert set(read_runbook()) == set(ALERTS)


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_has_a_severity_a_summary_and_a_link_that_leads_somewhere(alert: str) -> None:
    rule = ALERTS[alert]
    assert re.fullmatch(r"Dsv41[A-Z]\w+", alert)
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    assert "{{ $labels.node }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"monitoring/runbook.md#{alert.lower()}"


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_a_section_asks_for_evidence_that_its_rule_is_about(alert: str) -> None:
    """The first thing to look at is what made it fire."""
    section = find_section(alert)
    names = set(
        re.findall(r"\b(?:sglang:|smg_|agent_|dsv41_|dsv41:|node_|prometheus_|up\b)[a-z0-9_:]*", ALERTS[alert]["expr"])
    )
    families = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in names}
    asked = " ".join(evidence.argument for evidence in section.evidence)
    kinds = {evidence.kind for evidence in section.evidence}
    found = any(re.search(rf"\b{re.escape(family)}", asked) for family in families)
    assert found or "canary" in kinds or "contract" in kinds or "status" in kinds


def test_the_readme_counts_them_right() -> None:
    assert f" {len(ALERTS)} alerts, " in (MONITORING.parent / "README.md").read_text(encoding="utf-8")


def test_pages_are_few_enough_to_be_taken_seriously() -> None:
    """Somebody is woken by at most half of all alerts."""
    pages = [alert for alert, rule in ALERTS.items() if rule["labels"]["severity"] == "page"]
    assert len(pages) * 2 <= len(ALERTS)
