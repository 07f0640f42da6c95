"""Recording pages: what is kept of them, and what the source declares beside them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.observe.known_metrics import known_metrics
from dsv41_serving.observe.recording import (
    _NODE_FAMILIES,
    _declarations,
    drop_labels,
    hide_directories,
    keep_families,
    record_pages,
    targets_of,
)
from dsv41_serving.plan.monitoring import NIXL_LABELS
from dsv41_serving.spec import load_spec
from tests.unit.run.fake_plan import fake_plan

SPEC = load_spec(profile="embedded").spec


def test_of_the_host_only_what_is_judged_is_kept_and_no_private_mount() -> None:
    page = (
        '# TYPE node_load1 gauge\nnode_load1 1\nnode_uname_info{nodename="secret"} 1\n'
        'node_filesystem_avail_bytes{mountpoint="/"} 5\nnode_filesystem_avail_bytes{mountpoint="/home/me"} 6\n'
    )
    assert keep_families(page, _NODE_FAMILIES) == (
        '# TYPE node_load1 gauge\nnode_load1 1\nnode_filesystem_avail_bytes{mountpoint="/"} 5\n'
    )


def test_directories_of_the_recorded_machine_are_not_kept() -> None:
    page = 'prometheus_x{rule_group="/home/me/rules/engine.yml;dsv41-engine-alerts"} 0\n'
    assert hide_directories(page) == 'prometheus_x{rule_group="engine.yml;dsv41-engine-alerts"} 0\n'


def test_of_nixl_only_labels_are_kept_that_last() -> None:
    page = (
        "# TYPE agent_tx_bytes_total counter\n"
        'agent_tx_bytes_total{hostname="box",agent_name="5f3e",pid="12",agent_instance="0",local_rank="1"} 3\n'
        'agent_errors_total{agent_instance="0",status="backend",pid="12"} 0\nplain{pid="1"} 2\n'
    )
    assert drop_labels(page, NIXL_LABELS["regex"]) == (
        "# TYPE agent_tx_bytes_total counter\n"
        'agent_tx_bytes_total{agent_instance="0",local_rank="1"} 3\n'
        'agent_errors_total{agent_instance="0",status="backend"} 0\nplain 2\n'
    )


def test_no_recorded_page_names_a_directory_of_somebody() -> None:
    pages = Path(__file__).parents[3] / "monitoring" / "metrics"
    assert [page.name for page in pages.glob("*.prom") if re.search(r'"/(home|root|tmp|work)/', page.read_text())] == []


def test_declarations_are_read_from_source() -> None:
    source = (
        'A = Counter(name="sglang:failed_total", documentation="x", labelnames=labels.keys())\n'
        'B = Histogram("dsv41_x_seconds", "x", ["op"])\nC = Gauge(name=name)\nD = Gauge(name="other")\n'
    )
    found = {name: (kind, labels) for name, kind, labels in _declarations(source)}
    assert found["sglang:failed_total"][0] == "counter"
    assert "tp_rank" in found["sglang:failed_total"][1]
    assert found["dsv41_x_seconds"] == ("histogram", {"op"})
    assert len(found) == 2


def test_every_page_of_a_node_has_a_target(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    decode = plan.service("decode").model_copy(update={"ports": {"http": 1, "nixl": 30202}})
    plan = plan.model_copy(update={"services": (plan.service("prefill"), decode, plan.router)})
    targets = {target.name: target.url for target in targets_of(plan, SPEC)}
    assert list(targets) == ["prefill", "decode", "nixl-decode", "router-smg", "exporter", "node", "prometheus"]
    assert targets["nixl-decode"] == "http://127.0.0.1:30202/metrics"
    assert targets["exporter"] == "http://127.0.0.1:9641/metrics"


def test_without_a_stack_nothing_is_recorded(tmp_path: Path) -> None:
    said: list[str] = []
    plan = fake_plan(tmp_path)
    with pytest.raises(InputError, match="nothing answers; start it with `dsv41 up`"):
        asyncio.run(record_pages(plan, targets_of(plan, SPEC)[:3], tmp_path / "pages", said.append, rounds=1))
    assert said == []
    assert [*(tmp_path / "pages").iterdir()] == []


def test_what_is_known_has_types_and_labels_of_pages_and_declarations(tmp_path: Path) -> None:
    declared = {
        "sglang:failed": {"type": "counter", "labels": ["tp_rank"]},
        "smg_hidden_total": {"type": "counter", "labels": None},
    }
    (tmp_path / "declared.json").write_text(json.dumps(declared))
    (tmp_path / "decode-load.prom").write_text(
        '# TYPE sglang:x_seconds histogram\nsglang:x_seconds_bucket{le="1.0"} 1\nsglang:x_seconds_count 1\n'
        '# TYPE sglang:free gauge\nsglang:free{tp_rank="0"} 3\n'
    )
    known = known_metrics(tmp_path)
    assert (known["sglang:failed_total"].kind, known["sglang:free"].kind) == ("counter", "gauge")
    assert known["sglang:x_seconds_bucket"].kind == "counter"
    assert known["sglang:x_seconds_bucket"].values["le"] == {"1.0"}
    assert {"tp_rank", "service", "role", "node"} <= known["sglang:free"].labels
    assert known["smg_hidden_total"].open_labels
    assert known["dsv41_gpu_info"].labels >= {"gpu", "uuid"}
