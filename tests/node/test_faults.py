"""What clients see when something dies, and what the node does about it. On the node that test_deploy.py left serving."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import Operator, ask
from tests.node.machine import Machine
from tests.node.test_deploy import main_pids

CLIENTS = 3
LOAD = Path(__file__).with_name("load.py").read_text(encoding="utf-8")
RECOVERY_S = 300.0


@contextmanager
def load_on(machine: Machine, key: str = "") -> Iterator[list[dict[str, Any]]]:
    """Keep CLIENTS conversations going while the block runs; the list holds what became of each afterwards."""
    (machine.root / "root/load.py").write_text(LOAD, encoding="utf-8")
    machine.run("rm -f /root/stop")
    command = [
        "ssh",
        "-F",
        machine.network.ssh_config,
        machine.name,
        f"python3 /root/load.py 30001 /root/stop {CLIENTS} {key}",
    ]
    results: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as load:
        try:
            time.sleep(3)  # conversations are under way: from here on nothing is timed
            yield results
        finally:
            machine.run("touch /root/stop")
            results += json.loads(load.communicate()[0])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return as soon as `condition` holds."""
    deadline = time.monotonic() + RECOVERY_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {RECOVERY_S:.0f} s"
        time.sleep(0.5)


def serves(machine: Machine) -> bool:
    """Return whether every service is up and a conversation works."""
    return (
        machine.run("systemctl is-active dsv41-prefill dsv41-decode dsv41-router && dsv41 gate", check=False).returncode
        == 0
    )


@pytest.mark.parametrize("service", ["router", "decode", "prefill"])
def test_a_killed_service_comes_back_and_only_requests_of_that_time_fail(
    operator: Operator, service: str, figures: dict[str, object]
) -> None:
    node = operator.node
    with load_on(node) as results:
        killed = time.time()
        before = node.run(f"systemctl show -P MainPID dsv41-{service}").stdout
        node.run(f"systemctl kill --signal=KILL --kill-whom=main dsv41-{service}")
        wait_until(
            lambda: node.run(f"systemctl show -P MainPID dsv41-{service}").stdout not in {before, "0\n"}, "a restart"
        )
        wait_until(lambda: serves(node), "serving again")
        recovered = time.time()
        wait_until(lambda: time.time() > recovered + 5, "some more requests")
    figures[f"kill -9 of {service}: to serving again, s"] = round(recovered - killed, 1)
    figures[f"kill -9 of {service}: requests by outcome"] = dict(Counter(result["outcome"] for result in results))
    # What a client gets is an answer or an error, never an empty answer that looks like one.
    assert "empty answer" not in {result["outcome"] for result in results}
    late = [result["outcome"] for result in results if result["started"] > recovered]
    assert late
    assert set(late) == {"ok"}, "requests fail although the node serves again"
    assert results[0]["outcome"] == "ok", "the load did not run before the kill"


def metric(machine: Machine, port: int, name: str) -> float:
    """Return the sum of the samples called `name` on the page of an engine."""
    page = machine.run(f"curl -s --max-time 10 http://127.0.0.1:{port}/metrics").stdout
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if re.match(rf"{name}[{{ ]", line))


def test_drain_says_what_it_waits_for_and_frees_what_outlasts_its_bound(
    operator: Operator, figures: dict[str, object]
) -> None:
    node = operator.node
    body = {"model": "deepseek-v4.1-flash", "prompt": "One, two,", "max_tokens": 4000, "ignore_eos": True}
    url = "http://127.0.0.1:30001/v1/completions"
    ask_long = f"curl -s -o /dev/null --max-time 200 {url} -H 'content-type: application/json' -d '{json.dumps(body)}'"
    node.run(f"systemd-run --quiet --unit=long-request {ask_long}")
    wait_until(lambda: metric(node, 30200, "sglang:kv_used_tokens") > 0, "KV of the request in decode")
    done = node.run("dsv41 drain --timeout 1")
    assert re.search(r"^(?!cancelling).*decode: \d+ running", done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"^cancelling .*decode: \d+ running", done.stderr, re.MULTILINE), done.stderr
    assert re.fullmatch(r"drained in .* s; cancelled .*decode: \d+ running.*\n", done.stdout)
    for port in (30100, 30200):
        wait_until(lambda port=port: metric(node, port, "sglang:kv_used_tokens") == 0, f"KV of {port} freed")  # type: ignore[misc]
    node.run("dsv41 drain --undo")
    figures["drain of an idle node, s"] = round(json.loads(node.run("dsv41 drain --json").stdout)["seconds"], 1)
    node.run("dsv41 drain --undo")
    assert ask(node)["choices"][0]["finish_reason"] == "stop"


def test_a_restart_of_the_pair_under_load_loses_no_request(operator: Operator, figures: dict[str, object]) -> None:
    """Under systemd, where stop and start are one transaction over three units."""
    node = operator.node
    before = main_pids(node)
    with load_on(node) as results:
        asked = time.time()
        said = node.run("dsv41 restart --pair --timeout 120").stdout
        restarted = time.time()
        wait_until(lambda: time.time() > restarted + 5, "some more requests")
    figures["restart --pair under load, s"] = round(restarted - asked, 1)
    figures["restart --pair under load: requests by outcome"] = dict(Counter(result["outcome"] for result in results))
    assert said.splitlines()[-1] == "restarted: prefill, decode, router"
    assert not set(main_pids(node)) & set(before)
    # What was inside has finished; what came meanwhile was told to come back, or found nobody.
    assert {result["outcome"] for result in results if result["started"] < asked} == {"ok"}
    turned_away = {"HTTP 503", "URLError", "RemoteDisconnected", "ConnectionResetError"}
    assert {result["outcome"] for result in results} <= {"ok"} | turned_away
    late = {result["outcome"] for result in results if result["started"] > restarted}
    assert late == {"ok"}, "requests fail although the node serves again"


def test_a_service_that_cannot_start_is_given_up_and_deploy_mends_it(operator: Operator) -> None:
    node = operator.node
    node.run("mv /etc/dsv41/plan.json /root/plan.json; systemctl kill --signal=KILL --kill-whom=main dsv41-router")
    wait_until(
        lambda: node.run("systemctl show -P ActiveState dsv41-router").stdout == "failed\n", "the end of the restarts"
    )
    assert node.run("systemctl show -P Result dsv41-router").stdout in {"exit-code\n", "start-limit-hit\n"}
    assert "Start request repeated too quickly" in node.run("journalctl -u dsv41-router --no-pager").stdout
    assert "plan.json" in node.run("journalctl -t dsv41-router --no-pager -n 50").stdout
    operator.must_play("deploy")
    assert serves(node)


def test_a_stop_under_load_finishes_what_runs_and_leaves_nothing(operator: Operator) -> None:
    node = operator.node
    with load_on(node) as results:
        operator.must_play("stop")
    assert {result["outcome"] for result in results} <= {
        "ok",
        "HTTP 503",
        "URLError",
        "ConnectionRefusedError",
        "HTTP 429",
    }
    assert results[0]["outcome"] == "ok"
    assert node.run("pgrep -u dsv41 -f 'sglang|launch_router'", check=False).stdout == ""
    assert node.run("ss -Hltn 'sport = :30001 or sport = :30100 or sport = :30200'").stdout == ""
    assert node.run("ls /dev/shm").stdout == ""
    stopped = node.run(
        "journalctl -b -o cat --no-pager -u dsv41-prefill -u dsv41-decode -u dsv41-router"
    ).stdout.splitlines()
    order = [
        line.split(".service")[0].removeprefix("Stopped dsv41-")
        for line in stopped
        if line.startswith("Stopped dsv41-")
    ]
    assert order[-3:] == ["router", "prefill", "decode"]


def test_a_full_disk_is_one_line_and_no_damage(operator: Operator) -> None:
    node = operator.node
    node.run("mount -t tmpfs -o size=64k,uid=$(id -u dsv41),gid=$(id -g dsv41),mode=0755 full /var/lib/dsv41")
    node.run("head -c 100000 /dev/zero > /var/lib/dsv41/ballast", check=False)
    try:
        play = operator.play("deploy")
        assert play.code != 0
        assert play.changed == 0
        line = next(line for line in play.output.splitlines() if "would not serve on node-a" in line)
        assert "fail  files.state: 0.0 GB free in /var/lib/dsv41, 1.0 GB needed; mend: " in line
        units = "dsv41.target dsv41-prefill dsv41-decode dsv41-router"
        assert node.run(f"systemctl is-active {units}", check=False).stdout.split() == ["inactive"] * 4
        assert node.run("systemctl start dsv41-prefill", check=False).returncode != 0
        journal = node.run("journalctl -t dsv41-prefill -n 20 -o cat --no-pager").stdout
        assert "No space left on device" in journal
        assert "Traceback" not in journal
    finally:
        node.run(
            "systemctl stop dsv41-prefill dsv41-decode; umount /var/lib/dsv41; systemctl reset-failed dsv41-prefill"
        )
    node.run("systemctl start dsv41.target")
    assert serves(node)
    assert ask(node)["choices"][0]["finish_reason"] == "stop"
