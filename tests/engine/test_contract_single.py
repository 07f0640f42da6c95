"""The contract without a pair: one engine behind the router, whose errors then reach the client as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.stack import MODEL, PORTS, StackUnderTest

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
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


@pytest.mark.parametrize("stream", [False, True])
def test_errors_reach_the_client_whole(stack: StackUnderTest, *, stream: bool) -> None:
    unknown = ask(stack, model="other", stream=stream)
    assert unknown.status_code == 404
    assert unknown.json() == {
        "error": {
            "message": f"The model 'other' does not exist; this server serves '{MODEL}'",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    long = ask(stack, messages=[{"role": "user", "content": "word " * 8200}], stream=stream)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_other_apis_at_the_engine(stack: StackUnderTest) -> None:
    """The router offers neither; what an engine answers there keeps the contract."""
    url = f"http://127.0.0.1:{PORTS['engines.prefill.port']}"
    assert stack.record("single").pid
    messages = httpx.post(f"{url}/v1/messages", json={"model": MODEL, "messages": HELLO, "max_tokens": 8}, timeout=60)
    assert messages.json()["model"] == MODEL
    assert messages.json()["content"][0]["type"] == "thinking"
    responses = httpx.post(f"{url}/v1/responses", json={"input": "Say yes.", "max_output_tokens": 8}, timeout=60)
    assert responses.json()["model"] == MODEL
    assert responses.json()["output"][0]["type"] == "reasoning"
