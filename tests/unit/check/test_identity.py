"""A port must belong to the process that was started: who answers is no proof of who it is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsv41_serving.check.identity import check_identity
from dsv41_serving.facts import read_process
from tests.unit.run.waiting import sleeping_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41_serving.plan import Plan, Service

# Opens the port in a child, as an engine's HTTP server may be.
LISTENER = """
import os, socket, sys
if os.fork() == 0:
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print("open", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


@contextmanager
def child_listening(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose child listens on `port`."""
    command = [sys.executable, "-I", "-S", "-c", LISTENER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            assert child.stdout.readline() == b"open\n"
            yield child
        finally:
            child.stdin.close()


def ticks_of(pid: int) -> int:
    """Return the start of a process."""
    process = read_process(pid)
    assert process is not None
    return process.start_ticks


def on_free_port(plan: Plan) -> Service:
    """Return a service of the plan on a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return plan.service("prefill").model_copy(update={"port": listening.getsockname()[1]})


def test_a_descendant_may_hold_the_port(plan: Plan) -> None:
    """The process that was started need not be the one that listens."""
    service = on_free_port(plan)
    with child_listening(service.port) as child:
        finding = check_identity(service, child.pid, ticks_of(child.pid))
    assert finding.passed
    assert finding.seen.startswith(f"port {service.port} is pid ")
    assert (finding.service, finding.check) == ("prefill", "identity")


def test_a_port_that_nobody_opened(plan: Plan) -> None:
    """The process runs and does not listen."""
    service = on_free_port(plan)
    finding = check_identity(service, os.getpid(), ticks_of(os.getpid()))
    assert not finding.passed
    assert finding.as_line() == (
        f"FAIL  prefill   identity     nothing listens on port {service.port}; read the log of the service"
    )


def test_a_stranger_on_the_port(plan: Plan) -> None:
    """It is named, so that a person knows what to stop."""
    service = on_free_port(plan)
    with child_listening(service.port) as stranger, sleeping_process() as ours:
        finding = check_identity(service, ours.pid, ticks_of(ours.pid))
    assert not finding.passed
    assert f"port {service.port} belongs to pid " in finding.seen
    assert f"not to pid {ours.pid}" in finding.seen
    assert sys.executable in finding.seen
    assert str(stranger.pid) not in finding.seen.split("(", maxsplit=1)[0]
    assert finding.remedy == "stop that process; two services must not share a port"


def test_a_process_that_has_vanished(plan: Plan) -> None:
    """Its port may already be somebody else's."""
    service = on_free_port(plan)
    with sleeping_process() as ours:
        ticks = ticks_of(ours.pid)
    finding = check_identity(service, ours.pid, ticks)
    assert not finding.passed
    assert finding.seen == f"pid {ours.pid} is no longer the process that was started"


def test_a_pid_that_was_given_again(plan: Plan) -> None:
    """Another start, another process, though it listens on the right port."""
    service = on_free_port(plan)
    with child_listening(service.port) as child:
        finding = check_identity(service, child.pid, ticks_of(child.pid) - 1)
    assert not finding.passed
    assert finding.seen == f"pid {child.pid} is no longer the process that was started"
