"""What a Grafana on the node is told: where its data is, and where its boards lie."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv41_serving.plan.grafana import BOARDS_DIR, boards, grafana_files
from dsv41_serving.spec import load_spec
from dsv41_serving.spec.monitoring import Monitoring

RUNBOOK = "https://wiki.example/dsv41/runbook.md"


@pytest.fixture
def monitoring() -> Monitoring:
    overrides = ("monitoring.prometheus_port=9191", "monitoring.scrape_interval_s=7")
    return load_spec(profile="embedded", overrides=overrides).spec.monitoring


def _provisioned(monitoring: Monitoring) -> dict[str, Any]:
    return {file.path.removeprefix("/etc/dsv41/grafana/"): json.loads(file.text) for file in grafana_files(monitoring)}


def test_grafana_asks_the_prometheus_of_the_plan(monitoring: Monitoring) -> None:
    sources = _provisioned(monitoring)["provisioning/datasources/dsv41.yaml"]["datasources"]
    prometheus, alertmanager = sources
    assert prometheus["url"] == "http://127.0.0.1:9191"
    assert prometheus["jsonData"]["timeInterval"] == "7s"
    assert prometheus["isDefault"] is True
    assert prometheus["jsonData"]["alertmanagerUid"] == alertmanager["uid"]
    assert alertmanager["url"] == f"http://127.0.0.1:{monitoring.alertmanager_port}"


def test_boards_lie_where_the_provider_looks(monitoring: Monitoring) -> None:
    provisioned = _provisioned(monitoring)
    provider = provisioned["provisioning/dashboards/dsv41.yaml"]["providers"][0]
    assert provider["options"] == {"path": BOARDS_DIR}
    assert provider["folder"] == "DeepSeek-V4.1"
    shown = {name for name in provisioned if name.startswith("boards/")}
    assert shown == {"boards/dsv41-main.json", "boards/dsv41-node.json", "boards/dsv41-slo.json"}


def test_links_lead_to_the_runbook_of_the_node() -> None:
    main = boards(RUNBOOK)["dsv41-main"]
    assert [v["query"] for v in main["templating"]["list"] if v["name"] == "runbook"] == [RUNBOOK]
    fullness = next(panel for panel in main["panels"] if panel["title"] == "KV fullness")
    assert fullness["links"][0]["url"] == "${runbook:raw}#dsv41kvpoolfull"


def test_without_a_runbook_address_there_are_no_dead_links() -> None:
    for board in boards("").values():
        links = [link for holder in (board, *board["panels"]) for link in holder.get("links", [])]
        assert {link["title"] for link in links} == {"Boards", "Alerts"}
