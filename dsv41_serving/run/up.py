"""`dsv41 up`: the whole plan on this machine, held in the foreground or left running behind a detached process."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsv41_serving.credential import API_KEY
from dsv41_serving.errors import GateError, InputError
from dsv41_serving.run.prepare import hold_lock, log_path
from dsv41_serving.run.progress import Progress
from dsv41_serving.run.record import Records, ServiceRecord, StackRecord
from dsv41_serving.run.stack import Stack
from dsv41_serving.run.sweep import sweep_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from rich.console import Console

    from dsv41_serving.plan.model import Plan

# What `dsv41 restart` sends.
RESTART_ROUTER = signal.SIGUSR2
RESTART_ALL = signal.SIGUSR1

_POLL_S = 0.1
_TAIL_BYTES = 1000


def refuse_second(plan: Plan) -> None:
    """Raise InputError when a `dsv41 up` of this node is already running."""
    stack = Records(plan.state_dir).read_stack()
    if stack is not None and stack.alive:
        raise InputError(
            f"the stack is already up (pid {stack.pid}, {stack.state})",
            where=f"node {plan.node}",
            remedy="`dsv41 status` shows it, `dsv41 down` stops it",
        )


def hold_stack(plan: Plan, console: Console, options: Sequence[str] = ()) -> None:
    """Run `plan` until SIGINT or SIGTERM, showing progress; the first drains, the second stops at once.

    `options` are those that chose the plan, for the commands that are shown. Raises GateError when a start fails or recovery gives up.
    """
    with hold_lock(plan, "up"), _guard(plan), Progress(console) as progress:
        asyncio.run(_run_stack(plan, progress.show, lambda record: _announce(plan, console, record, options)))


def launch_stack(plan: Plan, console: Console, command: Sequence[str], options: Sequence[str] = ()) -> None:
    """Start `command` (a `dsv41 up` of the same plan) as a process of its own and return when its gate has passed.

    Shows the same progress and `options` as a foreground start. Interrupted, it takes the start back. Raises GateError.
    """
    with hold_lock(plan, "up"):
        pass  # somebody else's stack is said now, before a process is made
    records = Records(plan.state_dir)
    records.clear()
    log = log_path(plan, "up")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        with Progress(console) as progress:
            record = _watch(child, records, progress.show)
    except KeyboardInterrupt:
        child.send_signal(signal.SIGTERM)
        child.wait()
        raise
    if record is None or record.state != "ready":
        child.wait()
        tail = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        problem = record.problem if record and record.problem else (tail[-1] if tail else "it printed nothing")
        raise GateError(f"the start failed: {problem}", remedy=f"logs are in {log.parent}")
    _announce(plan, console, record, options)


def stop_stack(plan: Plan, console: Console) -> str:
    """Stop what `dsv41 up` runs, or what is left of it; return one line that says what was found.

    A living `dsv41 up` is asked to drain and stop. Whatever it left, if it was killed, is ended by the recorded sessions;
    a process that is not recorded as ours, or that a service manager looks after, is never touched.
    """
    records = Records(plan.state_dir)
    stack = records.read_stack()
    if stack is not None and stack.alive:
        bound = sum(service.drain_timeout_s for service in plan.services) + 60.0
        os.kill(stack.pid, signal.SIGTERM)
        with Progress(console) as progress:
            deadline = time.monotonic() + bound
            while stack.alive and time.monotonic() < deadline:
                for service in records.read_services(plan):
                    progress.show(service)
                time.sleep(_POLL_S)
        if stack.alive:
            os.kill(stack.pid, signal.SIGKILL)
            while stack.alive:
                time.sleep(_POLL_S)
        message = f"stopped (pid {stack.pid})"
    else:
        message = "nothing is running"
    left = records.read_services(plan)
    swept = sum(sweep_service(record) for record in left)
    records.clear()
    if swept:
        message += f"; ended {swept} processes an earlier start had left"
    if others := [record.name for record in left if record.supervised]:
        message += (
            f"; not stopped, because another supervisor looks after it: {', '.join(others)} "
            "(under systemd: systemctl stop dsv41.target)"
        )
    return message


@contextmanager
def _guard(plan: Plan) -> Iterator[None]:
    """Keep a process beside this one that cleans up after it, should it be killed."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "dsv41_serving.run.sweep", plan.state_dir], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        if guard.stdin is not None:
            guard.stdin.close()
        guard.wait()


async def _run_stack(
    plan: Plan, on_change: Callable[[ServiceRecord], None], on_state: Callable[[StackRecord], None]
) -> None:
    def open_log(name: str) -> BinaryIO:
        path = log_path(plan, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")

    stack = Stack(plan, open_log=open_log, on_change=on_change, on_state=on_state)
    loop = asyncio.get_running_loop()
    # A terminal that is closed drains as Ctrl-C does; `up --detach` has none.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stack.request_stop)
    loop.add_signal_handler(RESTART_ROUTER, lambda: stack.request_restart(pair=False))
    loop.add_signal_handler(RESTART_ALL, lambda: stack.request_restart(pair=True))
    await stack.run()


def _watch(
    child: subprocess.Popen[bytes], records: Records, show: Callable[[ServiceRecord], None]
) -> StackRecord | None:
    """Follow the records of `child` until it is ready, failed, or gone."""
    while True:
        gone = child.poll() is not None
        record = records.read_stack()
        mine = record if record is not None and record.pid == child.pid else None
        for service in records.read_services():
            show(service)
        if gone or (mine is not None and mine.state in {"ready", "failed"}):
            return mine
        time.sleep(_POLL_S)


def _announce(plan: Plan, console: Console, record: StackRecord, options: Sequence[str]) -> None:
    if record.state == "ready":
        console.print(how_to_call(plan, options), markup=False, highlight=False, soft_wrap=True)
    elif record.state == "recovering":
        console.print(f"recovering: {record.problem}", markup=False, highlight=False)


def how_to_call(plan: Plan, options: Sequence[str] = ()) -> str:
    """Return what a new user needs to talk to the stack; `options` of the command line chose it."""
    command = shlex.join(["dsv41", *options])
    url = plan.router.url
    key_file = plan.router.credentials.get(API_KEY)
    key = f' -H "authorization: Bearer $(cat {key_file})"' if key_file else ""
    # The certificate is for the name that clients use, not for this address.
    trust = " --insecure" if plan.router.tls_cert_file else ""
    return (
        f"\nReady: {plan.served_model_name} at {url}/v1\n\n"
        f"  curl {url}/v1/chat/completions{trust}{key} -H 'content-type: application/json' -d '{{\n"
        f'    "model": "{plan.served_model_name}",\n'
        '    "messages": [{"role": "user", "content": "What is the capital of France?"}],\n'
        '    "max_tokens": 200}\'\n\n'
        f"  {command} status    what runs\n  {command} down      stop it\n"
    )
