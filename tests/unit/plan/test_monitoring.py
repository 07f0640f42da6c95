"""What is rendered for Prometheus and Alertmanager: targets, objectives in the rules, and times that shrink for drills."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.plan.monitoring import alertmanager_config, fill_rules, monitoring_files, prometheus_config
from dsv41_serving.plan.monitoring_units import monitoring_units
from dsv41_serving.spec.monitoring import Monitoring
from tests.unit.plan.machines import INSTALLATION, plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Plan


NIXL_OWN = ("agent_instance", "agent_name", "hostname", "local_rank", "pid", "status")


@pytest.fixture(scope="module")
def plan(two_sockets: Facts) -> Plan:
    return plan_for(two_sockets, "h200x8", "node.name=left")


def test_objectives_of_the_node_stand_in_the_rules() -> None:
    text = 'x_bucket{le="@{first_token_bound}"} / y{le="@{between_tokens_bound}"} # {{ $value }}'
    filled = fill_rules(text, Monitoring(first_token_objective_s=2.0, between_tokens_objective_s=0.1))
    assert filled == 'x_bucket{le="2.0"} / y{le="0.1"} # {{ $value }}'


def test_a_drill_shortens_windows_delays_and_offsets_but_leaves_two_samples_in_a_window() -> None:
    text = "expr: rate(x[5m]) > avg_over_time(y[1d] offset 1h)\nfor: 10m\n"
    filled = fill_rules(text, Monitoring(time_factor=0.01, scrape_interval_s=1))
    assert filled == "expr: rate(x[4000ms]) > avg_over_time(y[864000ms] offset 36000ms)\nfor: 6000ms\n"
    assert fill_rules(text, Monitoring()) == text


def test_names_that_clients_invent_do_not_become_series(plan: Plan) -> None:
    jobs = prometheus_config(Monitoring(), plan)["scrape_configs"]
    (rule,) = next(job for job in jobs if "router" in job["job_name"])["metric_relabel_configs"]
    assert rule["action"] == "keep"
    assert re.fullmatch(rule["regex"], "deepseek-v4.1-flash")
    assert re.fullmatch(rule["regex"], "")
    assert not re.fullmatch(rule["regex"], "no-such-model")
    assert not re.fullmatch(rule["regex"], "deepseek-v4x1-flash")


def test_nixl_is_scraped_beside_its_engine_without_what_changes_at_each_start(plan: Plan) -> None:
    jobs = {job["job_name"]: job for job in prometheus_config(Monitoring(), plan)["scrape_configs"]}
    assert [name for name in jobs if "nixl" in name] == ["dsv41-nixl-prefill", "dsv41-nixl-decode"]
    decode = jobs["dsv41-nixl-decode"]
    assert decode["static_configs"] == [
        {"targets": ["127.0.0.1:30202"], "labels": {"node": "left", "service": "decode", "role": "decode"}}
    ]
    (rule,) = decode["metric_relabel_configs"]
    assert rule["action"] == "labeldrop"
    assert {label for label in NIXL_OWN if re.fullmatch(rule["regex"], label)} == {"agent_name", "hostname", "pid"}


def test_alerts_go_to_the_webhook_when_there_is_one() -> None:
    told = alertmanager_config(Monitoring(alert_webhook="http://127.0.0.1:1/"))["receivers"][0]
    assert told["webhook_configs"] == [{"url": "http://127.0.0.1:1/", "send_resolved": True}]
    assert alertmanager_config(Monitoring())["receivers"][0]["webhook_configs"] == []


def test_an_info_is_told_to_nobody() -> None:
    routes = alertmanager_config(Monitoring())["route"]["routes"]
    assert {"matchers": ['severity="info"'], "receiver": "nobody"} in routes


@pytest.mark.parametrize("factor", [1.0, 0.02])
def test_promtool_and_amtool_accept_what_is_rendered(plan: Plan, tmp_path: Path, factor: float) -> None:
    tools = ("promtool", "amtool")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"{missing[0]} is not installed; enable with: apt-get install prometheus prometheus-alertmanager")
    for file in monitoring_files(Monitoring(time_factor=factor), plan):
        target = tmp_path / file.path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.text)
    for command in (
        ["promtool", "check", "config", str(tmp_path / "etc/dsv41/prometheus/prometheus.yml")],
        ["amtool", "check-config", str(tmp_path / "etc/dsv41/alertmanager/alertmanager.yml")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_watchers_run_the_verbs_and_share_the_hardening(plan: Plan) -> None:
    from dsv41_serving.spec import load_spec

    spec = load_spec(profile="h200x8", overrides=["monitoring.canary_interval_s=60.0"]).spec
    units = {file.path.rpartition("/")[2]: file.text for file in monitoring_units(spec, plan, INSTALLATION)}
    assert set(units) == {
        f"dsv41-{name}"
        for name in ("exporter.service", "canary.service", "canary.timer", "contract.service", "contract.timer")
    }
    # The plan that the engines were started from, and not a node file that may have been edited since.
    assert "dsv41_serving --plan /etc/dsv41/plan.json canary\n" in units["dsv41-canary.service"]
    assert not [name for name, text in units.items() if "/etc/dsv41/node.toml" in text]
    assert "OnUnitActiveSec=60\n" in units["dsv41-canary.timer"]
    for name in ("exporter", "canary", "contract"):
        assert "NoNewPrivileges=yes" in units[f"dsv41-{name}.service"]
        assert "ProtectSystem=strict" in units[f"dsv41-{name}.service"]


def test_prometheus_reads_the_rules_beside_its_configuration(plan: Plan) -> None:
    files = {file.path: file.text for file in monitoring_files(Monitoring(), plan)}
    config = json.loads(files["/etc/dsv41/prometheus/prometheus.yml"])
    assert config["rule_files"] == ["rules/*.yml"]
    assert "/etc/dsv41/prometheus/rules/recording.yml" in files
    assert config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == ["127.0.0.1:9093"]
