"""From a bare machine to a serving one, what a second run does, and what happens to a node that drifted."""

from __future__ import annotations

import json

from dsv41_serving.release.room import ENVIRONMENT_BYTES
from tests.node.conftest import ROOT, Operator, ask
from tests.node.machine import Machine
from tests.qemu.guest import sandbox

OURS = "find /etc/dsv41 /etc/systemd/system/dsv41* /usr/local/bin/dsv41 /opt/dsv41/releases /var/lib/dsv41 2>/dev/null"


def test_precheck_of_a_bare_node_asks_what_can_be_asked(operator: Operator) -> None:
    play = operator.must_play("precheck")
    assert play.changed == 0
    assert "/opt/dsv41/current is not installed on node-a yet; when it is, its preflight is asked" in " ".join(
        play.output.split()
    )
    assert operator.node.run(OURS, check=False).stdout == ""


def test_check_mode_on_a_bare_node_says_what_it_would_do_and_does_nothing(operator: Operator) -> None:
    play = operator.must_play("deploy", "--check", "--diff")
    assert play.changed > 5
    assert "not installed yet, so the files it renders cannot be shown" in play.output
    assert "+vm.max_map_count = 1048576" in play.output
    assert operator.node.run(OURS, check=False).stdout == ""


def test_a_wrong_key_is_refused_before_the_node_is_touched(operator: Operator) -> None:
    operator.write_inventory(router={"prot": 30002})
    play = operator.play("deploy")
    operator.write_inventory()
    assert play.code != 0
    assert "prot" in play.output
    assert operator.node.run(OURS, check=False).stdout == ""


def test_a_bare_machine_becomes_a_serving_node(operator: Operator, figures: dict[str, float]) -> None:
    play = operator.must_play("deploy")
    figures["deploy: bare machine to passed gate, s"] = play.seconds
    # Its preflight was asked first: a container has process numbers of its own, which is worth a word and no reason to stop.
    assert "warn  kernel.namespace: a PID namespace of its own" in play.output
    node = operator.node
    assert (
        node.run("systemctl is-active dsv41.target dsv41-prefill dsv41-decode dsv41-router").stdout.split()
        == ["active"] * 4
    )
    assert node.run("id -un $(stat -c %u /proc/$(systemctl show -P MainPID dsv41-decode))").stdout.strip() == "dsv41"
    assert ask(node)["choices"][0]["finish_reason"] == "stop"
    status = {row["service"]: row["state"] for row in json.loads(node.run("dsv41 status --json").stdout)}
    assert status == dict.fromkeys(("prefill", "decode", "router"), "ready")
    assert failing_targets(node) == set()
    taken = int(node.run("du --summarize --block-size=1 /opt/dsv41/environments").stdout.split()[0])
    assert taken <= ENVIRONMENT_BYTES, "precheck asks for less room than an environment takes"


def test_a_second_run_changes_nothing(operator: Operator, figures: dict[str, float]) -> None:
    before = main_pids(operator.node)
    play = operator.must_play("deploy")
    assert play.changed == 0
    figures["deploy: second run, s"] = play.seconds
    assert main_pids(operator.node) == before
    operator.must_play("check")


def test_an_engines_sandbox_lets_it_do_what_it_must(operator: Operator) -> None:
    """Lock memory, make code, load what was compiled, copy from its peer: the gate has shown what the hand-off makes of it.

    Little memory: a container raises no limit that its host may not raise. That the limit is gone is shown in tests/qemu.
    """
    node = operator.node
    probe, unit = node.root / "usr/local/lib/probe.py", node.root / "etc/systemd/system/probe.service"
    probe.write_text((ROOT / "tests/qemu/probe.py").read_text(encoding="utf-8"), encoding="utf-8")
    engine = node.run("cat /etc/systemd/system/dsv41-prefill.service").stdout
    command = "/opt/dsv41/current/venv/bin/python /usr/local/lib/probe.py sandbox 4"
    unit.write_text(sandbox(engine, command), encoding="utf-8")
    try:
        node.run("systemctl daemon-reload && systemctl start probe")
        said = node.run("journalctl --sync; journalctl -o cat --no-pager _SYSTEMD_UNIT=probe.service").stdout
    finally:
        unit.unlink()
        probe.unlink()
        node.run("systemctl daemon-reload")
    assert json.loads(said) == {
        "mlock": "ok",
        "made code": "42",
        "library": "3.0",
        "pidfd_getfd": "ok",
        "process_vm_readv": "ok",
    }


def test_drift_is_shown_then_repaired(operator: Operator) -> None:
    node = operator.node
    node.run("sed -i 's/^OOMScoreAdjust=-500/OOMScoreAdjust=0/' /etc/systemd/system/dsv41-decode.service")
    node.run("rm /etc/dsv41/prometheus/rules/serving.yml; echo vm.swappiness=60 > /etc/sysctl.d/90-dsv41.conf")
    assert operator.play("check").code != 0
    play = operator.must_play("deploy", "--check", "--diff")
    assert {"-OOMScoreAdjust=0", "+OOMScoreAdjust=-500", "-vm.swappiness=60"} <= set(play.output.splitlines())
    assert node.run("grep OOMScore /etc/systemd/system/dsv41-decode.service").stdout == "OOMScoreAdjust=0\n"
    operator.must_play("deploy")
    assert node.run("grep OOMScore /etc/systemd/system/dsv41-decode.service").stdout == "OOMScoreAdjust=-500\n"
    assert (
        node.run("cat /etc/sysctl.d/90-dsv41.conf").stdout
        == (ROOT / "ansible/roles/node/files/sysctl.conf").read_text()
    )
    assert ask(node)["choices"][0]["finish_reason"] == "stop"
    assert operator.must_play("deploy", "--check", "--diff").changed == 0
    operator.must_play("check")


def test_it_comes_back_after_a_reboot(operator: Operator) -> None:
    before = main_pids(operator.node)
    operator.node.reboot()
    operator.node.run("systemctl start dsv41.target && dsv41 gate")
    assert main_pids(operator.node) != before
    assert ask(operator.node)["choices"][0]["finish_reason"] == "stop"


def main_pids(machine: Machine) -> list[str]:
    return machine.run("systemctl show -P MainPID dsv41-prefill dsv41-decode dsv41-router").stdout.split()


def failing_targets(machine: Machine) -> set[str]:
    """Return the scrape jobs that Prometheus cannot read; one that was not there yet gets two minutes to be tried again."""
    program = (
        "import json, time, urllib.request\n"
        "for _ in range(240):\n"
        "    page = json.load(urllib.request.urlopen('http://127.0.0.1:9090/api/v1/targets'))\n"
        "    found = [(t['labels']['job'], t['health']) for t in page['data']['activeTargets']]\n"
        "    if {health for _, health in found} == {'up'}: break\n"
        "    time.sleep(0.5)\n"
        "print(*[job for job, health in found if health != 'up'])\n"
    )
    return set(machine.run(f'python3 -c "{program}"').stdout.split())
