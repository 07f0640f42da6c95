"""The contract on real engines: every key of the table, set to something else than its default, shows on the wire.

The table below differs from the defaults in every key that a client can notice, so a clause that stopped reading the table
fails here.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.engine.stack import PORTS, StackUnderTest

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT = 1024
TABLE = [
    f"engine.context_length={CONTEXT}",
    'contract.served_model_name="toy"',
    'contract.aliases=["toy-alias", "toy-other"]',
    "contract.thinking=false",
    "contract.reasoning_effort=30",
    "contract.temperature=0",
    "contract.max_tokens=24",
    "contract.max_tokens_limit=40",
    "contract.max_choices=2",
    "contract.max_thinking_tokens=5",
    "contract.stream_usage=true",
]
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "What is the capital of France?"}]
THINK = {"chat_template_kwargs": {"thinking": True}}
ENGINE_URLS = {name: f"http://127.0.0.1:{PORTS[f'engines.{name}.port']}" for name in ("prefill", "decode")}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackUnderTest]:
    """A pair with the table above; taken down at the end."""
    stack = StackUnderTest(tmp_path_factory.mktemp("node"), overrides=TABLE)
    yield stack
    stack.down()


def through_router(stack: StackUnderTest, api: str = CHAT, **fields: Any) -> httpx.Response:
    """Send a request through the router, as a client does."""
    body = {"model": "toy", **({"messages": HELLO} if api == CHAT else {}), **fields}
    return httpx.post(f"{stack.url}{api}", json=body, timeout=120)


def at_engines(api: str = CHAT, **fields: Any) -> httpx.Response:
    """Send a request to both engines as a router would that changes nothing; decode answers."""
    body = {**({"messages": HELLO} if api == CHAT else {}), **fields}
    body |= {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": PORTS["engines.prefill.bootstrap_port"],
        "bootstrap_room": random.getrandbits(60),
    }

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(timeout=120) as client:
            both = await asyncio.gather(*(client.post(f"{url}{api}", json=body) for url in ENGINE_URLS.values()))
        return both[-1]

    return asyncio.run(send())


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the chunks of a stream."""
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def prompt_of(**fields: Any) -> str:
    """Return the prompt an engine renders for a conversation."""
    ids = httpx.post(f"{ENGINE_URLS['decode']}/tokenize", json={"messages": HELLO, **fields}).json()["tokens"]
    body = {"tokens": ids, "skip_special_tokens": False}
    text: str = httpx.post(f"{ENGINE_URLS['decode']}/detokenize", json=body).json()["text"]
    return text


@pytest.mark.usefixtures("stack")
def test_both_engines_report_one_contract() -> None:
    """What the gate compares; both hold the table above."""
    prefill, decode = (httpx.get(f"{url}/contract").json() for url in ENGINE_URLS.values())
    assert (prefill.pop("role"), decode.pop("role")) == ("prefill", "decode")
    assert prefill == decode
    assert prefill["in_force"] == {
        "served_model_name": "toy",
        "reasoning_parser": "deepseek-v41",
        "tool_call_parser": "deepseekv41",
        "encoder": "dsv41",
        "thinking": False,
        "reasoning_effort": "30",
        "sampling": {"temperature": 0.0, "top_p": 0.95},
        "context_length": CONTEXT,
        "strict_thinking": True,
        "seeds": True,
        "cache_report": True,
    }


def test_an_alias_is_answered_with_the_canonical_name(stack: StackUnderTest) -> None:
    assert through_router(stack, model="toy-alias", max_tokens=2).json()["model"] == "toy"
    chunks = events(through_router(stack, model="toy-alias", max_tokens=2, stream=True))
    assert {chunk["model"] for chunk in chunks} == {"toy"}
    assert httpx.get(f"{ENGINE_URLS['prefill']}/v1/models/toy-alias").json()["id"] == "toy"


def test_an_unknown_model_is_404_on_every_path(stack: StackUnderTest) -> None:
    routed = through_router(stack, model="other")
    assert (routed.status_code, routed.json()["error"]["code"]) == (404, "model_not_found")
    direct = at_engines(model="other")
    assert (direct.status_code, direct.json()["error"]["code"]) == (404, "model_not_found")
    served = "this server serves 'toy', 'toy-alias', 'toy-other'"
    assert direct.json()["error"]["message"] == f"The model 'other' does not exist; {served}"
    streamed = through_router(stack, model="other", stream=True)
    assert streamed.status_code == 404
    assert '"code":"model_not_found"' in streamed.text
    messages = at_engines("/v1/messages", model="other", max_tokens=2, messages=HELLO)
    assert (messages.status_code, messages.json()["error"]["type"]) == (404, "not_found_error")


def test_no_model_means_the_served_one_to_an_engine_and_is_refused_by_the_router(stack: StackUnderTest) -> None:
    reply = httpx.post(f"{stack.url}{CHAT}", json={"messages": HELLO, "max_tokens": 2}, timeout=120)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert at_engines(max_tokens=2).json()["model"] == "toy"


def test_thinking_is_off_by_the_table_and_on_by_every_spelling(stack: StackUnderTest) -> None:
    def thought(response: httpx.Response) -> bool:
        assert response.status_code == 200, response.text
        return bool(response.json()["choices"][0]["message"]["reasoning_content"])

    assert not thought(through_router(stack, max_tokens=4))
    assert thought(through_router(stack, max_tokens=4, **THINK))
    assert thought(through_router(stack, max_tokens=4, reasoning_effort="low"))
    assert thought(through_router(stack, max_tokens=4, thinking={"type": "enabled"}))
    assert thought(through_router(stack, max_tokens=4, reasoning={"enabled": True}))
    assert not thought(at_engines(max_tokens=4, thinking={"type": "disabled"}, reasoning_effort="max"))


@pytest.mark.usefixtures("stack")
def test_effort_is_rendered_as_the_encoder_writes_it() -> None:
    """The table's when the client names none; tiers and numbers in every spelling otherwise."""
    assert "Reasoning Effort" not in prompt_of()
    assert "Reasoning Effort: 30 (" in prompt_of(**THINK)
    for effort, budget in (("low", 50), ("high", 75), ("max", 100), (64, 64), ("64", 64), (0.64, 64)):
        assert f"Reasoning Effort: {budget} (" in prompt_of(reasoning_effort=effort)
    assert "Reasoning Effort: 12 (" in prompt_of(chat_template_kwargs={"reasoning_effort": 12})


def test_effort_as_a_number_passes_the_router(stack: StackUnderTest) -> None:
    for effort in (64, "64"):
        reply = through_router(stack, max_tokens=4, reasoning_effort=effort)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["reasoning_content"]
    nonsense = through_router(stack, reasoning_effort="lots")
    assert nonsense.status_code == 400
    assert "or a budget from 1 to 100, not 'lots'" in nonsense.json()["error"]["message"]


def test_thinking_ends_at_the_limit(stack: StackUnderTest) -> None:
    """The token that ends it is counted by SGLang as one of reasoning."""
    usage = through_router(stack, max_tokens=30, **THINK).json()["usage"]
    assert usage["reasoning_tokens"] == 6
    shorter = at_engines(max_tokens=30, thinking={"type": "enabled", "budget_tokens": 2})
    assert shorter.json()["usage"]["reasoning_tokens"] == 3


def test_n_samples_between_prefill_and_decode(stack: StackUnderTest) -> None:
    """It used to hang: all samples shared one bootstrap room."""
    reply = through_router(stack, n=2, max_tokens=4, temperature=1.5).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] <= 8
    single = through_router(stack, max_tokens=4).json()
    assert reply["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    chunks = events(through_router(stack, n=2, max_tokens=4, temperature=1.5, stream=True))
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1}
    completion = through_router(stack, "/v1/completions", prompt=["Say yes.", "Say no."], n=2, max_tokens=2).json()
    assert [choice["index"] for choice in completion["choices"]] == [0, 1, 2, 3]


def test_n_beyond_the_table_is_refused(stack: StackUnderTest) -> None:
    for count in (0, 3):
        assert through_router(stack, n=count, max_tokens=2).status_code == 400
    assert at_engines(n=0).json()["error"]["message"] == "n must be an integer from 1 to 2, not 0"


def test_an_answer_without_a_length_gets_the_tables(stack: StackUnderTest) -> None:
    reply = through_router(stack, ignore_eos=True).json()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (24, "length")


def test_or_what_the_context_leaves(stack: StackUnderTest) -> None:
    """A long prompt is not refused for a length its client never named. SGLang's scheduler keeps two positions free."""
    words = "word " * (CONTEXT - 20)
    reply = through_router(stack, messages=[{"role": "user", "content": words}], ignore_eos=True).json()
    usage = reply["usage"]
    assert usage["prompt_tokens"] > CONTEXT - 20
    assert 0 < usage["completion_tokens"] == CONTEXT - usage["prompt_tokens"] - 2


def test_a_length_beyond_the_table_is_refused(stack: StackUnderTest) -> None:
    refused = through_router(stack, max_tokens=41)
    assert refused.status_code == 400
    assert "must be an integer from 1 to 40, not 41" in refused.json()["error"]["message"]
    assert at_engines(max_tokens=0).json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_before_anything_streams(stack: StackUnderTest, *, stream: bool) -> None:
    words = [{"role": "user", "content": "word " * (CONTEXT + 1)}]
    routed = through_router(stack, messages=words, stream=stream)
    assert routed.status_code == 400
    assert "is longer than the model's context length (1024 tokens)" in routed.text
    direct = at_engines(messages=words, stream=stream)
    assert (direct.status_code, direct.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_usage_ends_a_stream_by_the_table_unless_the_client_says(stack: StackUnderTest) -> None:
    last = events(through_router(stack, max_tokens=2, stream=True))[-1]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
    silent = events(through_router(stack, max_tokens=2, stream=True, stream_options={"include_usage": False}))
    assert not any(chunk.get("usage") for chunk in silent)


def test_sampling_defaults_reach_chats_and_completions(stack: StackUnderTest) -> None:
    """The table says greedy; SGLang's own default for completions is temperature 1. Warm, so that both runs are cached alike."""
    asks: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {"max_tokens": 24, "ignore_eos": True}, "message"),
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True}, "text"),
    ]
    for api, body, key in asks:
        runs = [through_router(stack, api, **body).json()["choices"][0][key] for _ in range(4)]
        stated = through_router(stack, api, **body, temperature=0).json()["choices"][0][key]
        assert runs[1:] == [stated] * 3
        hot = [through_router(stack, api, **body, temperature=2).json()["choices"][0][key] for _ in range(2)]
        assert hot != [stated] * 2


def test_what_is_not_text_is_refused(stack: StackUnderTest) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    refused = through_router(stack, messages=[{"role": "user", "content": [image]}])
    assert refused.status_code == 400
    assert "messages[0].content[0] is 'image_url': this server reads text only" in refused.json()["error"]["message"]


@pytest.mark.usefixtures("stack")
def test_bad_requests_name_the_place_in_openais_shape() -> None:
    """Straight to the engine: the router answers most of them itself."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}
    expected: list[tuple[dict[str, Any], str, str]] = [
        ({"messages": [{"role": "owner", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"tools": [tool]}, "tools[0].function.parameters", "invalid_function_parameters"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"top_p": 7}, "top_p", "invalid_value"),
        ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"frobnicate": 1}, "frobnicate", "unknown_parameter"),
    ]
    for fields, param, code in expected:
        answer = at_engines(**fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), fields
        assert (error["param"], error["code"]) == (param, code), error
    broken = httpx.post(f"{ENGINE_URLS['decode']}{CHAT}", content="{", headers={"content-type": "application/json"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    alone = httpx.post(f"{ENGINE_URLS['decode']}{CHAT}", json={"messages": HELLO}, timeout=120)
    assert alone.json()["error"]["message"].endswith("send requests to the router")
