"""What clients see and what happens when a part dies: an error at once, then the documented recovery."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from dsv41_serving.run.stack import RESTART_LIMIT
from tests.engine.stack import MODEL, StackUnderTest, listening_ports, processes_of, shared_memory, wait_until

if TYPE_CHECKING:
    from dsv41_serving.run.record import ServiceRecord

RECOVERY_S = 240.0
LONG = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count from one to one thousand in words."}],
    "max_tokens": 6000,
    "ignore_eos": True,
    "chat_template_kwargs": {"thinking": False},
}


class Caller(threading.Thread):
    """One client with a long request; remembers how it ended."""

    def __init__(self, url: str, *, stream: bool) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stream = stream
        self.chunks = 0
        self.finished = False
        self.problem = ""

    def run(self) -> None:
        try:
            if not self._stream:
                response = httpx.post(f"{self._url}/v1/chat/completions", json=LONG, timeout=200)
                self.problem = f"HTTP {response.status_code}" if response.status_code >= 400 else ""
                self.finished = not self.problem
                return
            with httpx.stream(
                "POST", f"{self._url}/v1/chat/completions", json={**LONG, "stream": True}, timeout=200
            ) as response:
                for line in response.iter_lines():
                    if '"error"' in line:
                        self.problem = line
                    elif line == "data: [DONE]":
                        # smg ends the stream properly after an event that says what broke: clients raise on that event.
                        self.finished = not self.problem
                    elif line.startswith("data:"):
                        self.chunks += 1
        except httpx.HTTPError as error:
            self.problem = f"{type(error).__name__}: {error}"


def ask(stack: StackUnderTest) -> str:
    reply = stack.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=40,
        temperature=0,
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )
    return reply.choices[0].message.content or ""


def everything(stack: StackUnderTest) -> list[ServiceRecord]:
    return [stack.record(name) for name in ("prefill", "decode", "router")]


def wait_for_recovery(stack: StackUnderTest, killed: int, service: str) -> None:
    wait_until(lambda: stack.record(service).pid != killed, RECOVERY_S, f"{service} is started again\n{stack.logs()}")
    wait_until(lambda: stack.stack_state() == "ready", RECOVERY_S, f"the stack is ready again\n{stack.logs()}")


@pytest.mark.parametrize("victim", ["decode", "prefill"])
def test_killed_engine_gives_clients_an_error_and_the_pair_restarts(stack: StackUnderTest, victim: str) -> None:
    before = {record.name: record for record in everything(stack)}
    callers = [Caller(stack.url, stream=True), Caller(stack.url, stream=False)]
    for caller in callers:
        caller.start()
    wait_until(lambda: callers[0].chunks > 3, 60, "the stream has begun")
    killed = stack.kill(victim)
    for caller in callers:
        caller.join(120)
        assert not caller.is_alive(), "a client is left hanging"
        assert not caller.finished, "a broken answer must not look complete"
    assert callers[1].problem, "the whole-answer client got no error"
    wait_for_recovery(stack, killed, victim)
    after = {record.name: record for record in everything(stack)}
    for name, record in after.items():
        assert record.restarts == before[name].restarts + 1
        assert record.pid != before[name].pid
    assert processes_of(list(before.values())) == []
    assert "Paris" in ask(stack)


def test_killed_router_restarts_alone(stack: StackUnderTest) -> None:
    before = {record.name: record for record in everything(stack)}
    killed = stack.kill("router")
    wait_for_recovery(stack, killed, "router")
    after = {record.name: record for record in everything(stack)}
    assert after["prefill"].pid == before["prefill"].pid
    assert after["decode"].pid == before["decode"].pid
    assert after["router"].restarts == before["router"].restarts + 1
    assert "Paris" in ask(stack)


def test_fourth_failure_within_the_window_stops_everything(stack: StackUnderTest) -> None:
    while (restarts := max(record.restarts for record in everything(stack))) < RESTART_LIMIT:
        wait_for_recovery(stack, stack.kill("router"), "router")
        assert max(record.restarts for record in everything(stack)) == restarts + 1
    records = everything(stack)
    stack.kill("router")
    wait_until(lambda: stack.stack_state() == "failed", 60, f"the stack gives up\n{stack.logs()}")
    wait_until(lambda: processes_of(records) == [], 20, "no process is left")
    done = stack.run("status")
    assert done.returncode == 1
    assert "router ended with status -9" in done.stdout.replace(": ", " ")
    assert "giving up" in done.stdout


def test_killed_up_leaves_nothing_behind(stack: StackUnderTest) -> None:
    stack.down()
    segments = shared_memory()
    stack.up()
    records = everything(stack)
    os.kill(stack.stack_pid(), signal.SIGKILL)
    wait_until(lambda: processes_of(records) == [], 20, "every process has ended")
    wait_until(lambda: not listening_ports(), 20, "every port is free")
    wait_until(lambda: not (shared_memory() - segments), 20, f"shared memory is removed: {shared_memory() - segments}")
    # Last of all, and one service after the other.
    wait_until(lambda: not any(os.path.exists(record.tmp_dir) for record in records), 20, "no file is left")  # noqa: PTH110
    assert "nothing is running" in stack.down()


def test_down_drains_running_requests_and_leaves_nothing_behind(stack: StackUnderTest) -> None:
    segments = shared_memory()
    stack.up()
    records = everything(stack)
    url = f"{stack.url}/v1/chat/completions"
    body = {**LONG, "max_tokens": 60}
    replies: list[httpx.Response] = []
    caller = threading.Thread(target=lambda: replies.append(httpx.post(url, json=body, timeout=120)))
    caller.start()
    wait_until(lambda: stack.metric("decode", "sglang:num_running_reqs") == 1, 30, "decode runs the request")
    assert "stopped" in stack.down()
    caller.join(30)
    assert replies[0].status_code == 200
    assert replies[0].json()["usage"]["completion_tokens"] == 60
    assert processes_of(records) == []
    assert listening_ports() == set()
    assert shared_memory() - segments == set()
    assert stack.run("status").stdout.strip() == "nothing is running"
