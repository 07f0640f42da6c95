"""`dsv41 run ROLE`: one service in the foreground under a service manager, as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.run.record import Records
from dsv41_serving.run.service import report_preparation
from dsv41_serving.run.session import session_members
from tests.unit.run.fake_plan import fake_plan
from tests.unit.run.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from dsv41_serving.plan import Plan

RUN = """
import sys
from dsv41_serving.errors import Dsv41Error
from dsv41_serving.plan import Plan
from dsv41_serving.run import supervise
from dsv41_serving.run.service import run_service
supervise.GATE_RETRY_S = 0.02
plan = Plan.model_validate_json(sys.stdin.read())
say = lambda line: print(line, file=sys.stderr, flush=True)
try:
    run_service(plan, plan.service(sys.argv[1]), say=say)
except Dsv41Error as error:
    say(f"dsv41: {error}")
    sys.exit(error.exit_code)
"""


class Manager:
    """What systemd is to a service: it starts it, hears it, and asks it to stop."""

    def __init__(self, directory: Path) -> None:
        """Listen for messages, always: a sender waits while nobody reads."""
        self.address = str(directory / "notify")
        self.journal = directory / "journal"
        self.messages: list[str] = []
        self.started: list[subprocess.Popen[str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            self.messages.append(message.decode())

    def start(self, plan: Plan, name: str, **environ: str) -> subprocess.Popen[str]:
        """Start service `name` of `plan`; what the service prints goes to the journal."""
        with self.journal.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, name],
                env={**os.environ, "NOTIFY_SOCKET": self.address, **environ},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.started.append(process)
        assert process.stdin is not None
        process.stdin.write(plan.model_dump_json())
        process.stdin.close()
        process.stdin = None
        return process

    def hear(self, wanted: str) -> None:
        """Wait until a message has `wanted` in it."""
        wait_for(lambda: any(wanted in message for message in self.messages), wanted)

    def end(self) -> None:
        """End whatever still runs, so that each removes what it made."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(b"", self.address)
        self._listening.join()
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """Return a service manager."""
    one = Manager(tmp_path)
    yield one
    one.end()


def make_plan(tmp_path: Path, **prefill: Any) -> Plan:
    """Return a plan whose prefill engine has these settings."""
    return fake_plan(tmp_path / "state", {"prefill": prefill})


def test_a_service_tells_its_manager_where_it_stands(tmp_path: Path, manager: Manager) -> None:
    """Status per phase, more time while it makes progress, READY after the gate, the watchdog, then the drain."""
    plan = make_plan(tmp_path, lines=["Load weight begin. avail mem=1 GB"])
    process = manager.start(plan, "prefill", WATCHDOG_USEC="100000")
    manager.hear("READY=1")
    assert "STATUS=loading weights" in manager.messages
    assert "EXTEND_TIMEOUT_USEC=60000000" in manager.messages
    assert f"READY=1\nSTATUS=ready on port {plan.service('prefill').port}" in manager.messages
    manager.hear("WATCHDOG=1")
    record = Records(plan.state_dir).read_services()[0]
    assert (record.state, record.supervisor_pid) == ("ready", process.pid)
    process.send_signal(signal.SIGTERM)
    manager.hear("STOPPING=1")
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert manager.journal.read_text() == "Load weight begin. avail mem=1 GB\nINFO:     Application startup complete.\n"
    assert [line for line in said.splitlines() if "ready" in line] == ["prefill: ready"]
    assert Records(plan.state_dir).read_services()[0].state == "stopped"
    assert session_members(record.pid or 0) == []


def test_a_watchdog_is_not_fed_for_a_service_that_does_not_answer(tmp_path: Path, manager: Manager) -> None:
    """The manager then restarts it."""
    process = manager.start(make_plan(tmp_path, alive=False, chatty=True), "prefill", WATCHDOG_USEC="20000")
    manager.hear("READY=1")
    wait_for(lambda: manager.journal.read_text().count('"GET /health HTTP/1.1" 503') >= 3, "three refusals")
    assert process.poll() is None
    assert "WATCHDOG=1" not in manager.messages


def test_a_service_that_cannot_start_ends_with_one_line(tmp_path: Path, manager: Manager) -> None:
    """Exit code 1, and the reason in its record."""
    process = manager.start(make_plan(tmp_path, lines=["ValueError: bad"], exit=4), "prefill")
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    line = "prefill: ended with status 4 while importing; last line: ValueError: bad; read its log"
    assert said.splitlines()[-1] == f"dsv41: {line}"
    assert Records(tmp_path / "state").read_services()[0].problem == line


def test_a_service_that_ends_by_itself_is_a_failure(tmp_path: Path, manager: Manager) -> None:
    """So that the manager restarts it."""
    process = manager.start(make_plan(tmp_path), "prefill")
    manager.hear("READY=1")
    pid = Records(tmp_path / "state").read_services()[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert said.splitlines()[-1] == "dsv41: prefill: ended with status -9; read its log"


def test_a_stop_during_the_start_is_no_failure(tmp_path: Path, manager: Manager) -> None:
    """The start is taken back."""
    process = manager.start(make_plan(tmp_path, lines=["Load weight begin"], hang=True), "prefill")
    manager.hear("STATUS=loading weights")
    pid = Records(tmp_path / "state").read_services()[0].pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert session_members(pid or 0) == []


def test_a_router_waits_for_its_engines(tmp_path: Path, manager: Manager) -> None:
    """A worker it cannot reach at its start would be lost for good."""
    plan = make_plan(tmp_path)
    router = manager.start(plan, "router")
    manager.hear("STATUS=waiting (for prefill and decode)")
    for name in ("prefill", "decode"):
        manager.start(plan, name)
    wait_for(
        lambda: [record.state for record in Records(plan.state_dir).read_services(plan)] == ["ready"] * 3,
        "the router",
    )
    records = {record.name: record for record in Records(plan.state_dir).read_services()}
    assert records["router"].started_at > max(records[name].started_at for name in ("prefill", "decode"))
    assert router.poll() is None


def test_a_router_waits_for_engines_of_other_hosts_beyond_their_start_limit(tmp_path: Path, manager: Manager) -> None:
    """Nobody would start it again when the other host comes back."""
    whole = make_plan(tmp_path)
    engines = tuple(
        engine.model_copy(update={"node": f"host-{engine.name}", "start_timeout_s": 0.01}) for engine in whole.engines
    )
    manager.start(whole.model_copy(update={"services": (whole.router,), "elsewhere": engines}), "router")
    manager.hear("STATUS=waiting (for prefill on host-prefill and decode on host-decode)")
    manager.start(whole, "prefill")
    manager.hear("STATUS=waiting (for decode on host-decode)")
    manager.start(whole, "decode")
    wait_for(
        lambda: [record.state for record in Records(whole.state_dir).read_services(whole)] == ["ready"] * 3,
        "the router",
    )


def test_a_role_runs_once_on_a_node(tmp_path: Path, manager: Manager) -> None:
    """The second is refused before it starts anything."""
    plan = make_plan(tmp_path)
    manager.start(plan, "prefill")
    manager.hear("READY=1")
    second = manager.start(plan, "prefill")
    _, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 2
    assert said == (
        f"dsv41: {plan.state_dir}: 'prefill' already runs on this node; "
        "`dsv41 status` shows it, `dsv41 down` stops it\n"
    )


def test_decode_outlives_prefill_though_both_are_stopped_at_once(tmp_path: Path, manager: Manager) -> None:
    """Prefill writes into decode's memory, so decode leaves last; systemd sends both TERM at the same moment."""
    state = tmp_path / "busy.json"
    state.write_text('{"running": 1}', encoding="utf-8")
    plan = make_plan(tmp_path, state=str(state))
    processes = {name: manager.start(plan, name) for name in ("prefill", "decode")}
    records = Records(plan.state_dir)
    wait_for(lambda: [record.state for record in records.read_services()] == ["ready"] * 2, "the engines")
    decode = next(record for record in records.read_services() if record.name == "decode")
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    manager.hear("STATUS=draining (prefill to end first)")
    manager.hear("STATUS=draining (1 running)")
    assert decode.alive
    state.write_text('{"running": 0}', encoding="utf-8")
    assert [processes[name].wait(PATIENCE_S) for name in ("prefill", "decode")] == [0, 0]
    assert not decode.alive


def test_killed_decode_does_not_wait_for_prefill(tmp_path: Path, manager: Manager) -> None:
    """There is no memory left to write into; the manager shall restart the pair at once."""
    plan = make_plan(tmp_path)
    processes = {name: manager.start(plan, name) for name in ("prefill", "decode")}
    records = Records(plan.state_dir)
    wait_for(lambda: [record.state for record in records.read_services()] == ["ready"] * 2, "the engines")
    decode = next(record for record in records.read_services() if record.name == "decode")
    assert decode.pid is not None
    os.kill(decode.pid, signal.SIGKILL)
    assert processes["decode"].wait(PATIENCE_S) == 1
    assert processes["prefill"].poll() is None
    assert not [message for message in manager.messages if "to end first" in message]


def test_prefill_whose_decode_is_gone_waits_for_nothing(tmp_path: Path, manager: Manager) -> None:
    """Its running requests can never finish."""
    plan = make_plan(tmp_path, running=1)
    processes = {name: manager.start(plan, name) for name in ("prefill", "decode")}
    records = Records(plan.state_dir)
    wait_for(lambda: [record.state for record in records.read_services()] == ["ready"] * 2, "the engines")
    processes["decode"].send_signal(signal.SIGKILL)
    wait_for(lambda: not next(r for r in records.read_services() if r.name == "decode").alive, "decode to be gone")
    processes["prefill"].send_signal(signal.SIGTERM)
    assert processes["prefill"].wait(PATIENCE_S) == 0
    assert "STATUS=draining (1 running)" not in manager.messages


def test_steps_before_the_start_are_shown_and_take_their_time(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start of an embedded node makes its model; the manager must not take that for a stall."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    said: list[str] = []
    report_preparation(fake_plan(tmp_path).service("prefill"), said.append)("building the model")
    manager.hear("EXTEND_TIMEOUT_USEC=60000000")
    assert "STATUS=building the model" in manager.messages
    assert said == ["building the model"]
