"""Drain and restart of the real stack while clients keep asking: what is inside finishes, what comes is told to come back."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import httpx

from tests.engine.stack import MODEL, StackUnderTest, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

CALLERS = 4
KV_USED = "sglang:kv_used_tokens"
PROMPT = {"role": "user", "content": "Count from one to twenty in words."}


class Load:
    """Callers that stream one answer after the other; every request ends in exactly one of the outcomes."""

    def __init__(self, url: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url = f"{url}/v1/chat/completions"
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(CALLERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        while not self._end.is_set():
            outcome = self._ask()
            self.outcomes[outcome] += 1
            if outcome != "finished":
                self._end.wait(0.2)

    def _ask(self) -> str:
        """Return 'finished', 'turned away' (503), 'refused' (no connection), or what was wrong: then a request was lost.

        Refused is also a connection that the router had not taken yet when it ended: the kernel resets it, and nothing was begun.
        """
        begun = False
        body = {"model": MODEL, "messages": [PROMPT], "max_tokens": 24, "stream": True}
        body["chat_template_kwargs"] = {"thinking": False}
        try:
            with httpx.stream("POST", self._url, json=body, timeout=120) as reply:
                begun = True
                if reply.status_code == 503:
                    return "turned away"
                if reply.status_code != 200:
                    return f"HTTP {reply.status_code}"
                lines = [line for line in reply.iter_lines() if line]
        except httpx.ConnectError:
            return "refused"
        except httpx.HTTPError as error:
            return "refused" if not begun and self._gone() else f"broken: {type(error).__name__}"
        if lines[-1] != "data: [DONE]":
            return f"cut off after {lines[-1][:80]}"
        reasons = [
            json.loads(line[6:])["choices"][0]["finish_reason"] for line in lines[:-1] if '"finish_reason"' in line
        ]
        return "finished" if {"stop", "length"} & set(reasons) else f"no end: {reasons}"

    def _gone(self) -> bool:
        """Whether nobody listens any more."""
        try:
            httpx.get(self._url, timeout=60)
        except httpx.ConnectError:
            return True
        return False


def lost(load: Load, *, new_routers: int = 0) -> dict[str, int]:
    """What became of requests that were neither answered nor turned away.

    A router that has just started knows no model for some tens of milliseconds, until its workers are registered (smg 1.13.0): it may say
    404 once to every caller, each of which then waits longer than that.
    """
    found = {what: n for what, n in load.outcomes.items() if what not in {"finished", "turned away", "refused"}}
    if found.get("HTTP 404", 0) <= new_routers * CALLERS:
        found.pop("HTTP 404", None)
    return found


@contextmanager
def load_on(stack: StackUnderTest) -> Iterator[Load]:
    """Run the load; begin and end with answers."""
    with Load(stack.url) as load:
        wait_until(lambda: load.outcomes["finished"] >= CALLERS, 120, "answers before")
        yield load


def test_drain_loses_nothing_and_is_undone(stack: StackUnderTest) -> None:
    with load_on(stack) as load:
        done = stack.run("drain")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("drained in ")
        assert "cancelled" not in done.stdout
        assert [stack.metric(name, "sglang:num_running_reqs") for name in ("prefill", "decode")] == [0, 0]
        wait_until(lambda: load.outcomes["turned away"] >= CALLERS, 60, f"new requests get 503, not {load.outcomes}")
        assert httpx.get(f"{stack.url}/readiness", timeout=60).status_code == 503
        assert stack.status()["router"]["state"] == "closed"
        before = load.outcomes["finished"]
        assert stack.run("drain", "--undo").returncode == 0
        wait_until(lambda: load.outcomes["finished"] > before, 60, "requests are served again")
    assert lost(load) == {}
    assert load.outcomes["refused"] == 0
    assert stack.run("gate", "router").returncode == 0


def test_what_does_not_finish_in_time_is_cancelled_and_its_memory_freed(stack: StackUnderTest) -> None:
    body = {"model": MODEL, "messages": [PROMPT], "max_tokens": 4000, "ignore_eos": True}
    caller = threading.Thread(target=lambda: httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=300))
    caller.start()
    wait_until(lambda: stack.metric("decode", "sglang:num_running_reqs") == 1, 60, "decode runs the request")
    wait_until(lambda: stack.metric("decode", KV_USED) > 0, 60, "decode holds its memory")
    done = stack.run("drain", "--timeout", "0", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["closed"], report["left"]) == (True, "")
    assert "decode: 1 running" in report["cancelled"]
    caller.join(120)
    assert not caller.is_alive()
    for service in ("prefill", "decode"):
        # What the prefix cache keeps is not in it: that is free for whoever asks.
        wait_until(lambda name=service: stack.metric(name, KV_USED) == 0, 30, f"{service} frees its memory")
    assert stack.run("drain", "--undo").returncode == 0


def test_a_request_that_has_just_begun_is_not_overlooked(stack: StackUnderTest) -> None:
    """The engine's gauges do not know it for seconds: its first words are there before they move."""
    body = {"model": MODEL, "messages": [PROMPT], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body, timeout=300) as stream:
        next(stream.iter_lines())
        done = stack.run("drain", "--timeout", "0", "--json")
        assert json.loads(done.stdout)["cancelled"] != "", done.stdout + done.stderr
    assert stack.run("drain", "--undo").returncode == 0


def test_restart_of_the_router_loses_nothing_and_leaves_the_engines_alone(stack: StackUnderTest) -> None:
    before = {name: stack.record(name).pid for name in ("prefill", "decode", "router")}
    with load_on(stack) as load:
        done = stack.run("restart")
        assert done.returncode == 0, done.stdout + done.stderr
        finished = load.outcomes["finished"]
        wait_until(lambda: load.outcomes["finished"] > finished, 60, "requests are served again")
    assert lost(load, new_routers=1) == {}
    after = {name: stack.record(name).pid for name in before}
    assert {name for name in before if before[name] != after[name]} == {"router"}


def test_restart_of_the_pair_loses_nothing(stack: StackUnderTest) -> None:
    before = {name: stack.record(name).pid for name in ("prefill", "decode", "router")}
    with load_on(stack) as load:
        done = stack.run("restart", "--pair")
        assert done.returncode == 0, done.stdout + done.stderr
        finished = load.outcomes["finished"]
        wait_until(lambda: load.outcomes["finished"] > finished, 60, "requests are served again")
    assert lost(load, new_routers=1) == {}
    assert all(stack.record(name).pid != pid for name, pid in before.items())
    assert {row["state"] for row in stack.status().values()} == {"ready"}


def test_nothing_to_restart_is_one_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = StackUnderTest(tmp_path_factory.mktemp("idle")).run("restart")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing that can be restarted runs here" in done.stderr
