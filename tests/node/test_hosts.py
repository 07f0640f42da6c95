"""Prefill, decode and router on three machines of one bridge, deployed by the commands of the README."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import LONG, Operator, ask, give_packages
from tests.node.machine import Machine, Network
from tests.node.test_deploy import failing_targets
from tests.node.test_faults import load_on, wait_until
from tests.node.test_upgrade import ALIAS, releases

SERVICES = ("prefill", "decode", "router")
KEY = "layout-key-7d20"
# As a pattern that its own command line does not hold.
PATTERN = f"{KEY[:-1]}[{KEY[-1]}]"
KEY_FILE = "/etc/dsv41-key"
# UCX names the lanes it opens at this level: what carries the hand-off is read from the log, not from the configuration.
NODE_FILE: dict[str, Any] = {
    "profile": "embedded",
    "engine": {"cross_host": True, "env": {"UCX_LOG_LEVEL": "info"}},
    "router": {"host": "0.0.0.0", "api_key_file": KEY_FILE},  # noqa: S104 - of a machine without a way out
}


@dataclass
class LayoutOperator(Operator):
    """Somebody with an inventory whose groups name three hosts, in the order prefill, decode, router."""

    @property
    def prefill(self) -> Machine:
        return self.machines[0]

    @property
    def decode(self) -> Machine:
        return self.machines[1]

    @property
    def router(self) -> Machine:
        return self.machines[2]

    def write_inventory(self, **node_file: Any) -> None:
        """Write the inventory; `node_file` holds tables that take the place of those of NODE_FILE."""
        groups = {
            name: {
                "hosts": {
                    machine.name: {
                        "ansible_host": machine.name,
                        "ansible_ssh_common_args": f"-F {machine.network.ssh_config}",
                        "dsv41_address": machine.address,
                        "dsv41_device": "host0",
                    }
                }
            }
            for name, machine in zip(SERVICES, self.machines, strict=True)
        }
        variables = {"dsv41_node": {**NODE_FILE, **node_file}, **self.variables}
        inventory = self.directory / "hosts.json"
        inventory.write_text(json.dumps({"dsv41": {"children": groups, "vars": variables}}, indent=2))


@pytest.fixture(scope="module")
def layout(operator: Operator, network: Network) -> Iterator[LayoutOperator]:
    """Return the controller of three bare machines; the one of the other tests rests meanwhile."""
    operator.node.run("systemctl stop dsv41.target 'dsv41-*'", check=False)
    directory = network.directory / "hosts"
    directory.mkdir()
    own = Network(f"{network.bridge}h", network.prefix.replace("198.18", "198.19"), directory, network.template)
    names = ["gpu-a", "gpu-b", "edge-c"]
    for name in names:
        make_root(own, directory / name, operator.node.root)
        key = directory / name / KEY_FILE.lstrip("/")
        key.write_text(f"{KEY}\n")
        key.chmod(0o600)
    with own.machines(names) as machines:
        made = LayoutOperator(directory, machines, dict(operator.variables))
        made.write_inventory()
        yield made
    operator.node.run("systemctl start dsv41.target", check=False)


def make_root(network: Network, root: Path, other: Path) -> None:
    """Make `root` from the template, with the environments of the machine at `other`; without one, with the package cache."""
    environments = other / "opt/dsv41/environments"
    if not any(environments.glob("*/.complete")):
        give_packages(network, root)
        return
    subprocess.run(["cp", "-a", network.template, root], check=True)
    (root / "opt/dsv41").mkdir(parents=True)
    subprocess.run(["cp", "-al", environments, root / "opt/dsv41"], check=True)


def status_of(machine: Machine, url: str, key: str = "") -> str:
    """Return the HTTP status with which `url` answers `machine`; '000': nothing answers."""
    bearer = f"-H 'authorization: Bearer {key}'" if key else ""
    return machine.run(f"curl -s -o /dev/null -w '%{{http_code}}' --max-time 10 {bearer} {url}", check=False).stdout


def services_of(machine: Machine) -> set[str]:
    """Return the units of this project that run on `machine`, timers and the services they start left out."""
    listed = machine.run("systemctl list-units --plain --no-legend --state=active 'dsv41-*.service'").stdout
    return {line.split()[0].removesuffix(".service") for line in listed.splitlines()} - {
        "dsv41-canary",
        "dsv41-contract",
    }


def started(machine: Machine) -> str:
    """Return what systemd calls the running starts of the services of `machine`; another start has another name."""
    return machine.run("systemctl show -P InvocationID dsv41-prefill dsv41-decode dsv41-router dsv41-exporter").stdout


def moment(layout: LayoutOperator, service: str, what: str) -> int:
    """Return when `service` last became what `what` names (ActiveEnter, InactiveEnter), in microseconds of its machine's clock."""
    machine: Machine = getattr(layout, service)
    return int(machine.run(f"systemctl show -P {what}TimestampMonotonic dsv41-{service}").stdout)


def serves(layout: LayoutOperator) -> bool:
    """Return whether every gate passes, that of the router with a conversation through both engines."""
    return all(machine.run("dsv41 gate", check=False).returncode == 0 for machine in layout.machines)


def current(machine: Machine) -> str:
    (name,) = [release["name"] for release in releases(machine) if release["current"]]
    return name


def test_three_bare_machines_become_one_service(layout: LayoutOperator, figures: dict[str, object]) -> None:
    figures["deploy: three bare machines to passed gate, s"] = layout.must_play("deploy").seconds
    assert services_of(layout.prefill) == {"dsv41-prefill", "dsv41-exporter"}
    assert services_of(layout.decode) == {"dsv41-decode", "dsv41-exporter"}
    assert services_of(layout.router) == {"dsv41-router", "dsv41-exporter"}
    assert layout.prefill.run("ls /etc/systemd/system/dsv41-*.timer", check=False).stdout == ""
    assert layout.decode.run("systemctl is-active prometheus", check=False).stdout == "inactive\n"
    assert ask(layout.router, key=KEY)["choices"][0]["finish_reason"] == "stop"
    # Its own pages and those of the other two.
    assert failing_targets(layout.router) == set()


def test_nobody_is_answered_without_the_key(layout: LayoutOperator) -> None:
    for machine, port in ((layout.prefill, 30100), (layout.decode, 30200)):
        url = f"http://{machine.address}:{port}/v1/models"
        assert [status_of(layout.router, url, key) for key in ("", "wrong", KEY)] == ["401", "401", "200"]
        assert status_of(machine, f"http://127.0.0.1:{port}/health") == "000", "the engine listens on its address alone"
    url = f"http://{layout.router.address}:30001/workers"
    assert [status_of(layout.prefill, url, key) for key in ("", "wrong", KEY)] == ["401", "401", "200"]
    for machine in layout.machines:
        found = machine.run(
            f"journalctl --no-pager -o cat | grep -c {PATTERN}; grep -l {PATTERN} /proc/[0-9]*/cmdline", check=False
        )
        assert found.stdout == "0\n"


def test_kv_went_over_tcp_between_the_hosts(layout: LayoutOperator) -> None:
    log = layout.prefill.run("journalctl -t dsv41-prefill --no-pager -o cat | grep 'cfg#'").stdout
    assert "tcp/host0" in log
    page = f"http://{layout.prefill.address}:30100/metrics"
    moved = layout.router.run(f"curl -s {page} | grep '^sglang:kv_transfer_total_mb_sum'").stdout
    assert float(moved.split()[-1]) > 0


def test_a_second_run_changes_nothing(layout: LayoutOperator) -> None:
    before = [started(machine) for machine in layout.machines]
    play = layout.must_play("deploy")
    assert play.changed == 0, play.output[-6000:]
    assert [started(machine) for machine in layout.machines] == before
    layout.must_play("check")


def test_verbs_of_the_whole_say_where_they_work(layout: LayoutOperator) -> None:
    refused = layout.decode.run("dsv41 drain", check=False)
    assert refused.returncode == 2
    assert "the router runs on edge-c; run `dsv41 drain` there" in refused.stderr
    refused = layout.router.run("dsv41 restart --pair", check=False)
    assert refused.returncode == 2
    assert "on the controller, in ansible/: `ansible-playbook -i inventory playbooks/restart.yml`" in refused.stderr
    layout.router.run("dsv41 drain")
    url = f"http://{layout.router.address}:30001/readiness"
    assert status_of(layout.router, url) == "503"
    layout.router.run("dsv41 drain --undo")
    assert ask(layout.router, key=KEY)["choices"][0]["finish_reason"] == "stop"


def test_restart_goes_through_the_hosts_in_the_order_of_the_memory(layout: LayoutOperator) -> None:
    """Who writes into memory of another ends before its owner; the router starts when both engines serve."""
    before = [started(machine) for machine in layout.machines]
    play = layout.must_play("restart")
    assert re.search(r"msg: drained in [0-9.]+ s", play.output)
    assert not {line for text in before for line in text.split()} & {
        line for machine in layout.machines for line in started(machine).split()
    }
    # Machines in containers have one monotonic clock.
    ended, began = ({s: moment(layout, s, what) for s in SERVICES} for what in ("InactiveEnter", "ActiveEnter"))
    assert sorted(SERVICES, key=ended.__getitem__) == ["router", "prefill", "decode"]
    assert max(SERVICES, key=began.__getitem__) == "router"
    assert ask(layout.router, key=KEY)["choices"][0]["finish_reason"] == "stop"


@LONG
@pytest.mark.parametrize("host", ["decode", "prefill"])
def test_a_host_with_an_engine_reboots_and_only_requests_of_that_time_fail(
    layout: LayoutOperator, host: str, figures: dict[str, object]
) -> None:
    rebooting: Machine = getattr(layout, host)
    others = [machine for machine in layout.machines if machine is not rebooting]
    before = [started(machine) for machine in others]
    with load_on(layout.router, KEY) as results:
        left = time.time()
        rebooting.reboot()
        wait_until(lambda: serves(layout), "serving again")
        recovered = time.time()
        wait_until(lambda: time.time() > recovered + 5, "some more requests")
    figures[f"reboot of the {host} host: to serving again, s"] = round(recovered - left, 1)
    figures[f"reboot of the {host} host: requests by outcome"] = dict(Counter(result["outcome"] for result in results))
    assert results[0]["outcome"] == "ok", "the load did not run before the reboot"
    assert "empty answer" not in {result["outcome"] for result in results}
    late = {result["outcome"] for result in results if result["started"] > recovered}
    assert late == {"ok"}, "requests fail although the layout serves again"
    assert [started(machine) for machine in others] == before


@LONG
def test_an_upgrade_goes_through_all_hosts_and_rollback_undoes_it(
    layout: LayoutOperator, figures: dict[str, object]
) -> None:
    """Every host asks the new release's preflight beside what serves, and none switches before all have."""
    first = [current(machine) for machine in layout.machines]
    layout.write_inventory(**ALIAS)
    play = layout.must_play("upgrade")
    figures["upgrade of three hosts, s"] = play.seconds
    asked = play.output.index("TASK [node : Run the preflight]")
    stopped = play.output.index("TASK [node : Ask what runs]")
    for machine in layout.machines:
        assert asked < play.output.index(f"ok: [{machine.name}]", asked) < stopped
    second = [current(machine) for machine in layout.machines]
    assert not set(first) & set(second)
    for machine in layout.machines:
        assert machine.run("grep aliases /etc/dsv41/node.toml").stdout == 'aliases = ["house-model"]\n'
    assert ask(layout.router, key=KEY)["choices"][0]["finish_reason"] == "stop"

    layout.must_play("rollback")
    assert [current(machine) for machine in layout.machines] == first
    layout.write_inventory()
    layout.must_play("check")
    assert ask(layout.router, key=KEY)["choices"][0]["finish_reason"] == "stop"


@LONG
def test_an_upgrade_that_fails_on_one_host_is_taken_back_on_all(layout: LayoutOperator) -> None:
    before = [current(machine) for machine in layout.machines]
    layout.write_inventory(engines={"decode": {"args": {"no-such-flag": True}}})
    play = layout.play("upgrade")
    layout.write_inventory()
    assert play.code != 0
    assert [current(machine) for machine in layout.machines] == before
    for machine, name in zip(layout.machines, before, strict=True):
        assert f"{name} serves again" in play.output
        assert [row["name"] for row in releases(machine) if row["failed"]] != []
    assert serves(layout)
    assert ask(layout.router, key=KEY)["choices"][0]["finish_reason"] == "stop"


def test_stop_leaves_nothing(layout: LayoutOperator) -> None:
    layout.must_play("stop")
    for machine in layout.machines:
        assert services_of(machine) == set()
        assert machine.run("pgrep -u dsv41 -f 'sglang|launch_router'", check=False).stdout == ""
