"""The verbs that watch: what they print, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from dsv41_serving.cli import cli
from dsv41_serving.errors import InputError
from dsv41_serving.exporter.metrics import METRICS
from dsv41_serving.observe.runbook import read_runbook

if TYPE_CHECKING:
    import pytest


def dsv41(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["--profile", "embedded", *map(str, arguments)])


def test_metrics_list_is_the_table() -> None:
    rows = json.loads(dsv41("metrics", "list", "--json").output)
    assert [row["name"] for row in rows] == [metric.name for metric in METRICS]
    line = next(line for line in dsv41("metrics", "list").output.splitlines() if "dsv41_service_ready{" in line)
    assert line.startswith("gauge    dsv41_service_ready{service, role}  1 while a service is past its gate")


def test_explain_lists_every_alert_in_the_order_of_the_runbook() -> None:
    lines = dsv41("explain", "--list").output.splitlines()
    assert [line.split()[0] for line in lines] == list(read_runbook())


def test_explain_of_an_unknown_alert_names_a_near_one() -> None:
    error = dsv41("explain", "Dsv41Canary").exception
    assert isinstance(error, InputError)
    assert "did you mean Dsv41Canary" in str(error)


def test_explain_tells_what_it_can_without_a_prometheus(tmp_path: Path) -> None:
    done = dsv41("--set", f'node.state_dir="{tmp_path}"', "explain", "KvPoolFull", "--prometheus", "http://127.0.0.1:9")
    assert done.exit_code == 0
    assert done.output.startswith("Dsv41KvPoolFull: no Prometheus answers at http://127.0.0.1:9")
    assert "query dsv41:kv_free:ratio" in done.output


def test_top_without_a_prometheus_is_one_line() -> None:
    error = dsv41("top", "--once", "--prometheus", "http://127.0.0.1:9").exception
    assert isinstance(error, InputError)
    assert error.exit_code == 2


def test_metrics_configure_writes_a_configuration_that_stands_alone(tmp_path: Path) -> None:
    done = dsv41("metrics", "configure", "--to", tmp_path)
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "prometheus" / "prometheus.yml").read_text())
    assert config["rule_files"] == ["rules/*.yml"]
    assert (tmp_path / "prometheus" / "rules" / "serving.yml").exists()
    assert (tmp_path / "alertmanager" / "alertmanager.yml").exists()
    assert not list(tmp_path.rglob("*.service"))


def test_a_canary_without_a_router_fails_step_by_step_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = ("engines.prefill.port=61100", "engines.decode.port=61200", "router.port=61001")
    options = [part for each in (*ports, f'node.state_dir="{tmp_path}"') for part in ("--set", each)]
    monkeypatch.setattr("dsv41_serving.canary.conversation._ABORT_PAUSE_S", 0.0)
    done = dsv41(*options, "canary")
    assert done.exit_code == 1
    assert [line.split()[:2] for line in done.output.splitlines()[:4]] == [
        ["FAIL", name] for name in ("thinking", "cancel", "tool_call", "answer")
    ]
    assert json.loads((tmp_path / "canary" / "run.json").read_text())["failures"] == 1
