"""The plan of one host of a layout: what runs there, where it listens, whom it may talk to, and what it knows of the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.credential import API_KEY
from dsv41_serving.plan import make_plan
from dsv41_serving.spec import load_spec
from tests.unit.plan.machines import INSTALLATION
from tests.unit.spec.test_hosts import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Plan

    PlanOf = Callable[[str], Plan]

UNITS = "/etc/systemd/system/"


@pytest.fixture
def plan_of(two_sockets: Facts, tmp_path: Path) -> PlanOf:
    """Return the plan of the host called so, with a description that differs from host to host in its name alone."""
    file = tmp_path / "node.toml"
    file.write_text(LAYOUT, encoding="utf-8")

    def plan(name: str, *overrides: str) -> Plan:
        return make_plan(load_spec(file, overrides=[f'node.name="{name}"', *overrides]), two_sockets, INSTALLATION)

    return plan


def text_of(plan: Plan, path: str) -> str:
    return next(file.text for file in plan.files if file.path == path)


def test_each_host_runs_its_own_and_knows_the_others(plan_of: PlanOf) -> None:
    for name, own in (("a", "prefill"), ("b", "decode"), ("c", "router")):
        plan = plan_of(name)
        assert [service.name for service in plan.services] == [own]
        assert {service.name for service in plan.elsewhere} == {"prefill", "decode", "router"} - {own}
        assert {worker.url for worker in plan.workers} == {"http://192.0.2.1:30100", "http://192.0.2.2:30200"}
        assert plan.router.node == "c"


def test_a_host_renders_the_units_of_its_services_alone(plan_of: PlanOf) -> None:
    def services(name: str) -> set[str]:
        paths = (file.path.removeprefix(UNITS) for file in plan_of(name).files if file.path.startswith(UNITS))
        return {path for path in paths if path.endswith((".service", ".timer"))}

    assert services("a") == {"dsv41-prefill.service", "dsv41-exporter.service"}
    assert services("b") == {"dsv41-decode.service", "dsv41-exporter.service"}
    watching = {f"dsv41-{name}.{kind}" for name in ("canary", "contract") for kind in ("service", "timer")}
    assert services("c") == {"dsv41-router.service", "dsv41-exporter.service"} | watching
    assert [file.path for file in plan_of("b").files if "/prometheus/" in file.path or "/grafana/" in file.path] == []
    assert "Wants=dsv41-decode.service dsv41-exporter.service\n" in text_of(plan_of("b"), f"{UNITS}dsv41.target")


def test_units_do_not_depend_on_units_of_other_hosts(plan_of: PlanOf) -> None:
    assert "prefill.service" not in text_of(plan_of("b"), f"{UNITS}dsv41-decode.service")
    router = text_of(plan_of("c"), f"{UNITS}dsv41-router.service")
    assert "Requires=" not in router
    assert plan_of("c").router.after == ("prefill", "decode")


def test_engines_listen_where_the_others_reach_them(plan_of: PlanOf) -> None:
    plan = plan_of("b")
    (decode,) = plan.engines
    assert decode.argv[decode.argv.index("--host") + 1] == "192.0.2.2"
    assert decode.env["SGLANG_HOST_IP"] == "192.0.2.2"
    assert decode.env["UCX_NET_DEVICES"] == "eth1"
    (prefill,) = plan_of("a").engines
    assert "UCX_NET_DEVICES" not in prefill.env, "the profile's loopback would end at the edge of the machine"
    router = plan_of("c").router
    assert router.argv[router.argv.index("--prefill") :][:3] == ("--prefill", "http://192.0.2.1:30100", "30198")
    assert router.argv[router.argv.index("--decode") + 1] == "http://192.0.2.2:30200"


def test_engines_read_the_key_as_a_credential(plan_of: PlanOf) -> None:
    unit = text_of(plan_of("b"), f"{UNITS}dsv41-decode.service")
    assert "LoadCredential=api-key:/etc/key\n" in unit
    (decode,) = plan_of("b").engines
    assert decode.credentials == {API_KEY: "/etc/key"}
    assert decode.env["DSV41_API_KEY_FILE"] == "/etc/key"
    assert "--api-key" not in decode.argv


def test_engines_and_exporter_talk_to_the_hosts_of_the_layout_alone(plan_of: PlanOf) -> None:
    allowed = "IPAddressDeny=any\nIPAddressAllow=localhost 192.0.2.1 192.0.2.2 192.0.2.3\n"
    for unit in ("decode", "exporter"):
        assert allowed in text_of(plan_of("b"), f"{UNITS}dsv41-{unit}.service")
    for unit in ("canary", "contract"):
        assert allowed in text_of(plan_of("c"), f"{UNITS}dsv41-{unit}.service")


def test_prometheus_beside_the_router_reads_every_host(plan_of: PlanOf) -> None:
    config = json.loads(text_of(plan_of("c"), "/etc/dsv41/prometheus/prometheus.yml"))
    targets = {
        job["job_name"]: {entry["labels"]["host"]: entry["targets"] for entry in job["static_configs"]}
        for job in config["scrape_configs"]
    }
    assert targets["dsv41-engine-prefill"] == {"a": ["192.0.2.1:30100"]}
    assert targets["dsv41-engine-decode"] == {"b": ["192.0.2.2:30200"]}
    assert targets["exporter"] == {"a": ["192.0.2.1:9641"], "b": ["192.0.2.2:9641"], "c": ["192.0.2.3:9641"]}
    assert targets["node"] == {"a": ["192.0.2.1:9100"], "b": ["192.0.2.2:9100"], "c": ["192.0.2.3:9100"]}
    assert targets["prometheus"] == {"c": ["127.0.0.1:9090"]}
    nodes = {entry["labels"]["node"] for job in config["scrape_configs"] for entry in job["static_configs"]}
    assert nodes == {"c"}, "the rules mean one serving node by this label"


def test_a_host_without_engines_needs_no_gpu(facts_of: Callable[[str], Facts], tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(LAYOUT.replace("embedded", "h200x8").replace('name = "b"', 'name = "c"'), encoding="utf-8")
    plan = make_plan(load_spec(file), facts_of("laptop"), INSTALLATION)
    assert [service.name for service in plan.services] == ["router"]


def test_both_engines_get_their_gpus_on_their_own_hosts(two_sockets: Facts, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(LAYOUT.replace("embedded", "h200x8"), encoding="utf-8")
    for name in ("a", "b"):
        plan = make_plan(load_spec(file, overrides=[f'node.name="{name}"']), two_sockets, INSTALLATION)
        assert [engine.placement.gpus for engine in plan.engines] == [(0, 1, 2, 3)]
