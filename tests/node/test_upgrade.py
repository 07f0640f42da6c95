"""Another release: one that serves, the way back, and one that does not serve."""

from __future__ import annotations

import json

from tests.node.conftest import Operator, ask
from tests.node.machine import Machine
from tests.node.test_deploy import main_pids

ALIAS = {"contract": {"aliases": ["house-model"]}}


def releases(machine: Machine) -> list[dict[str, str]]:
    return json.loads(machine.run("dsv41 release list --json").stdout)


def test_a_changed_inventory_becomes_the_next_release_and_rollback_undoes_it(operator: Operator) -> None:
    node = operator.node
    (first,) = [release["name"] for release in releases(node) if release["current"]]
    operator.write_inventory(**ALIAS)
    operator.must_play("upgrade")
    (second,) = [release["name"] for release in releases(node) if release["current"]]
    assert second != first
    assert node.run("grep aliases /etc/dsv41/node.toml").stdout == 'aliases = ["house-model"]\n'
    assert ask(node)["choices"][0]["finish_reason"] == "stop"

    operator.must_play("rollback")
    assert [release["name"] for release in releases(node) if release["current"]] == [first]
    assert node.run("grep aliases /etc/dsv41/node.toml").stdout == "aliases = []\n"
    assert ask(node)["choices"][0]["finish_reason"] == "stop"
    operator.write_inventory()
    operator.must_play("check")


def test_an_upgrade_that_cannot_serve_is_refused_before_anything_stops(operator: Operator) -> None:
    """The new release's own preflight is asked, beside the services of the old one. `reconfigure` is the same play."""
    node = operator.node
    before = main_pids(node)
    (serving,) = [release["name"] for release in releases(node) if release["current"]]
    operator.write_inventory(engine={"env": {"UCX_TLS": "self"}})
    plays = [operator.play("reconfigure"), operator.play("deploy")]
    operator.write_inventory()
    for play in plays:
        assert play.code != 0
        line = next(line for line in play.output.splitlines() if "would not serve on node-a" in line)
        assert "fail  links.lanes: prefill: UCX_TLS lacks tcp; decode: UCX_TLS lacks tcp; mend: set engine.env" in line
    assert [release["name"] for release in releases(node) if release["current"]] == [serving]
    assert main_pids(node) == before
    assert ask(node)["choices"][0]["finish_reason"] == "stop"


def test_an_upgrade_that_does_not_serve_takes_itself_back(operator: Operator) -> None:
    node = operator.node
    (serving,) = [release["name"] for release in releases(node) if release["current"]]
    # Only the start shows it: SGLang knows no such flag, so no engine passes its gate.
    operator.write_inventory(engine={"args": {"no-such-flag": True}})
    play = operator.play("upgrade")
    operator.write_inventory()
    assert play.code != 0
    assert f"{serving} serves again" in play.output
    rows = {release["name"]: release for release in releases(node)}
    assert rows[serving]["current"]
    (failed,) = [name for name, row in rows.items() if row["failed"]]
    assert failed in play.output
    assert node.run("dsv41 gate", check=False).returncode == 0
    assert ask(node)["choices"][0]["finish_reason"] == "stop"
    assert node.run("dsv41 release previous").stdout.strip() not in {serving, failed}
