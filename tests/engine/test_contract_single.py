"""The contract without a pair: one engine behind the router, whose errors then reach the client as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.stack import MODEL, PORTS, StackUnderTest

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
ENGINE = f"http://127.0.0.1:{PORTS['engines.prefill.port']}"
PLAIN = {"chat_template_kwargs": {"thinking": False}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackUnderTest]:
    """One aggregated engine, up and past its gate; taken down at the end."""
    overrides = ['shape="single"', f"engines.single.port={PORTS['engines.prefill.port']}"]
    single = StackUnderTest(tmp_path_factory.mktemp("node"), overrides=overrides)
    try:
        single.up()
        yield single
    finally:
        single.down()


def ask(stack: StackUnderTest, **fields: Any) -> httpx.Response:
    """Send a chat completion through the router."""
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **PLAIN, **fields}
    return httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=120)


def test_n_samples(stack: StackUnderTest) -> None:
    reply = ask(stack, n=3, temperature=1.5).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert ask(stack, n=9).json()["error"]["param"] == "n"


@pytest.mark.parametrize("front", ["router", "engine"])
def test_every_clause_is_kept(stack: StackUnderTest, front: str) -> None:
    """Through the router, and by the engine that is asked directly."""
    code, clauses = stack.check_contract(*(("--url", ENGINE) if front == "engine" else ()))
    assert {name: row["seen"] for name, row in clauses.items() if row["verdict"] == "miss"} == {}
    skipped = {name: row["seen"] for name, row in clauses.items() if row["verdict"] == "skip"}
    assert skipped == ({"router-keeps-fields": "this is not a router"} if front == "engine" else {})
    assert code == 0


@pytest.mark.parametrize("stream", [False, True])
def test_errors_reach_the_client_whole(stack: StackUnderTest, *, stream: bool) -> None:
    unknown = ask(stack, model="other", stream=stream)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    long = ask(stack, messages=[{"role": "user", "content": "word " * 8200}], stream=stream)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("front", ["router", "engine"])
def test_other_apis(stack: StackUnderTest, front: str) -> None:
    """The router passes both on; thinking can be turned off in the words of each."""
    url = stack.url if front == "router" else ENGINE
    messages = httpx.post(f"{url}/v1/messages", json={"model": MODEL, "messages": HELLO, "max_tokens": 8}, timeout=120)
    assert messages.json()["model"] == MODEL
    assert messages.json()["content"][0]["type"] == "thinking"
    plain = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "thinking": {"type": "disabled"}}
    assert httpx.post(f"{url}/v1/messages", json=plain, timeout=120).json()["content"][0]["type"] == "text"
    asked = {"model": MODEL, "input": "Say yes.", "max_output_tokens": 8}
    responses = httpx.post(f"{url}/v1/responses", json=asked, timeout=120).json()
    assert responses["model"] == MODEL
    assert responses["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    at_once = httpx.post(f"{url}/v1/responses", json={**asked, "reasoning": {"effort": "none"}}, timeout=120).json()
    assert at_once["output"][0]["type"] == "message"
