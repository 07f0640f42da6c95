"""`dsv41 up` and `dsv41 down`: the stack as a process of its own, with programs in place of the services."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts import read_process
from dsv41_serving.run.prepare import hold_lock
from dsv41_serving.run.record import Records, own_start_ticks
from dsv41_serving.run.session import session_members
from dsv41_serving.run.up import how_to_call, launch_stack, stop_stack
from tests.unit.run.fake_plan import fake_plan
from tests.unit.run.waiting import sleeping_process, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsv41_serving.plan import Plan
    from dsv41_serving.run.record import ServiceRecord

    Make = Callable[..., ServiceRecord]

UP = """
import sys
from pathlib import Path
from rich.console import Console
from dsv41_serving.errors import Dsv41Error
from dsv41_serving.plan import Plan
from dsv41_serving.run import supervise
from dsv41_serving.run.up import hold_stack
supervise.GATE_RETRY_S = 0.02
try:
    hold_stack(Plan.model_validate_json(Path(sys.argv[1]).read_text()), Console(width=200))
except Dsv41Error as error:
    print(f"dsv41: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


class Node:
    """A node whose stack is played by programs."""

    def __init__(self, directory: Path, **faults: dict[str, object]) -> None:
        """Make its plan."""
        self.plan: Plan = fake_plan(directory / "state", faults)
        self.records = Records(self.plan.state_dir)
        self.said = io.StringIO()
        self.console = Console(file=self.said, width=200)
        file = directory / "plan.json"
        file.write_text(self.plan.model_dump_json())
        self.command = [sys.executable, "-c", UP, str(file)]

    def launch(self) -> None:
        """Do what `dsv41 up --detach` does."""
        launch_stack(self.plan, self.console, self.command)

    def down(self) -> str:
        """Do what `dsv41 down` does."""
        return stop_stack(self.plan, self.console)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node; whatever runs on it is ended."""
    one = Node(tmp_path)
    yield one
    one.down()


def living(services: list[ServiceRecord]) -> list[int]:
    """Return every process of these services."""
    return [member for record in services if record.pid is not None for member in session_members(record.pid)]


def test_detached_it_returns_when_the_gate_has_passed_and_runs_on(node: Node) -> None:
    """Progress is shown as in the foreground; down drains it and leaves nothing."""
    node.launch()
    stack = node.records.read_stack()
    assert stack is not None
    assert (stack.state, stack.alive) == ("ready", True)
    services = node.records.read_services(node.plan)
    assert [(record.name, record.state) for record in services] == [
        ("prefill", "ready"),
        ("decode", "ready"),
        ("router", "ready"),
    ]
    assert "router    ready" in node.said.getvalue()
    assert f"Ready: deepseek-v4.1-flash at {node.plan.router.url}/v1" in node.said.getvalue()
    assert node.down() == f"stopped (pid {stack.pid})"
    assert living(services) == []
    assert node.records.read_services() == []
    assert node.records.read_stack() is None


def test_a_second_stack_is_refused(node: Node) -> None:
    """Before a process is made."""
    node.launch()
    with pytest.raises(InputError) as error:
        node.launch()
    assert str(error.value) == (
        f"{node.plan.state_dir}: 'up' already runs on this node; `dsv41 status` shows it, `dsv41 down` stops it"
    )


def test_a_start_that_fails_says_why_and_where_the_logs_are(tmp_path: Path) -> None:
    """Nothing of it runs on."""
    node = Node(tmp_path, decode={"lines": ["ValueError: bad"], "exit": 1}, prefill={"hang": True})
    with pytest.raises(GateError) as error:
        node.launch()
    assert str(error.value) == (
        "the start failed: decode: ended with status 1 while importing; last line: ValueError: bad; read its log; "
        f"logs are in {node.plan.state_dir}/log"
    )
    assert living(node.records.read_services()) == []
    assert (Path(node.plan.state_dir) / "log" / "decode.log").read_text() == "ValueError: bad\n"
    assert node.down() == "nothing is running"


def test_a_process_that_never_becomes_a_stack_is_quoted(node: Node) -> None:
    """Its last line is all there is to say."""
    node.command = [sys.executable, "-I", "-S", "-c", "import sys; sys.exit('no such module')"]
    with pytest.raises(GateError, match=r"^the start failed: no such module; logs are in "):
        node.launch()


def test_killed_it_leaves_nothing_behind(node: Node) -> None:
    """Its guard sees the end of the pipe and sweeps; services die with it anyway."""
    node.launch()
    stack = node.records.read_stack()
    services = node.records.read_services()
    assert stack is not None
    segment = Path("/dev/shm") / f"dsv41-test-{os.getpid()}"
    segment.touch()
    node.records.write_service(services[0].model_copy(update={"shared_memory": (segment.name,)}))
    os.kill(stack.pid, signal.SIGKILL)
    wait_for(
        lambda: not (living(services) or segment.exists() or any(Path(one.tmp_dir).exists() for one in services)),
        "the guard",
    )
    assert node.down() == "nothing is running"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_in_the_foreground_an_interrupt_drains_and_stops_it(node: Node, number: signal.Signals) -> None:
    """Exit code 0: it was asked for."""
    with subprocess.Popen(node.command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wait_for(lambda: "Ready: " in process.stdout.readline(), "the stack")
        services = node.records.read_services()
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait() == 0
    stopped = [line.split("]", 1)[1].split()[0] for line in rest.splitlines() if line.endswith(" stopped")]
    assert stopped == ["router", "prefill", "decode"]
    assert living(services) == []


def test_down_without_a_stack_ends_what_an_earlier_one_left(node: Node, make_record: Make) -> None:
    """Only what is recorded as ours; then nothing is remembered."""
    with sleeping_process() as left:
        process = read_process(left.pid)
        assert process is not None
        node.records.write_service(make_record(state="ready", pid=left.pid, start_ticks=process.start_ticks))
        assert node.down() == "nothing is running; ended 1 processes an earlier start had left"
    assert node.records.read_services() == []
    assert node.down() == "nothing is running"


def test_down_leaves_services_of_a_service_manager_alone(node: Node, make_record: Make) -> None:
    """It says whose they are, and keeps their records."""
    with sleeping_process() as engine:
        process = read_process(engine.pid)
        assert process is not None
        record = make_record(
            state="ready",
            pid=engine.pid,
            start_ticks=process.start_ticks,
            supervisor_pid=os.getpid(),
            supervisor_start_ticks=own_start_ticks(),
        )
        node.records.write_service(record)
        assert node.down() == (
            "nothing is running; not stopped, because another supervisor looks after it: prefill "
            "(under systemd: systemctl stop dsv41.target)"
        )
        assert engine.poll() is None
        assert node.records.read_services() == [record]


def test_a_lock_is_held_once_and_released(node: Node) -> None:
    """Each name by itself."""
    with hold_lock(node.plan, "prefill"):
        with pytest.raises(InputError, match="'prefill' already runs on this node"), hold_lock(node.plan, "prefill"):
            pass
        with hold_lock(node.plan, "decode"):
            pass
    with hold_lock(node.plan, "prefill"):
        pass


def test_a_new_user_is_told_how_to_call_it(node: Node) -> None:
    """The command can be pasted, and its body is JSON."""
    text = how_to_call(node.plan)
    body = json.loads(text.split("-d '", 1)[1].split("'", 1)[0])
    assert body["model"] == "deepseek-v4.1-flash"
    assert f"curl {node.plan.router.url}/v1/chat/completions" in text


def test_the_commands_shown_mean_the_same_node(node: Node) -> None:
    """Without the options that chose the plan they would find none."""
    told = how_to_call(node.plan, ["--profile", "embedded", "--set", "router.port=1 2"])
    assert "  dsv41 --profile embedded --set 'router.port=1 2' status" in told
    assert "  dsv41 --profile embedded --set 'router.port=1 2' down" in told
