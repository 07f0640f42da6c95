"""What each endpoint accepts, and what it adds when the client says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from dsv41_serving.sglang_plugin.contract.errors import Refusal
from dsv41_serving.sglang_plugin.contract.requests import (
    NO_EFFECT,
    REFUSED,
    ROLES,
    ROUTES,
    Engine,
    prepare_chat,
    prepare_completion,
    prepare_tokenize,
)
from dsv41_serving.spec.model import Contract

CONTRACT = Contract(served_model_name="canonical", aliases=["alias", "org/alias"])
ENGINE = Engine(
    context_length=8192,
    sampling={"temperature": 0.6, "top_p": 0.95},
    chat_fields=frozenset(
        {
            "chat_template_kwargs",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "model",
            "n",
            "reasoning_effort",
            "stream",
            "stream_options",
            "temperature",
            "thinking",
            "tools",
            "user",
        }
    ),
    completion_fields=frozenset(
        {"max_tokens", "model", "n", "prompt", "stream", "stream_options", "temperature", "top_p"}
    ),
)
HELLO = [{"role": "user", "content": "hi"}]


def chat(contract: Contract = CONTRACT, **body: Any) -> dict[str, Any]:
    """Return what a chat completion is changed to."""
    return prepare_chat({"messages": HELLO, **body}, contract, ENGINE)


def body_for(route: str, **fields: Any) -> dict[str, Any]:
    """Return a body that is fine for `route`, with `fields`."""
    return {"prompt": "x", **fields} if route == "/v1/completions" else {"messages": HELLO, **fields}


def refusal(rule: str = "/v1/chat/completions", **body: Any) -> Refusal:
    """Return the refusal of a request."""
    with pytest.raises(Refusal) as refused:
        ROUTES[rule](body, CONTRACT, ENGINE)
    return refused.value


@pytest.mark.parametrize("name", ["canonical", "alias", "org/alias", None, "", "default", "unknown"])
@pytest.mark.parametrize("route", sorted(ROUTES))
def test_known_names_and_no_name_mean_the_served_model(route: str, name: str | None) -> None:
    """SGLang writes 'default' and sglang-router 'unknown' where the client wrote nothing."""
    assert ROUTES[route](body_for(route, model=name), CONTRACT, ENGINE)["model"] == "canonical"


@pytest.mark.parametrize("name", ["other", "Canonical", "canonical:adapter", 7, ["canonical"]])
@pytest.mark.parametrize("route", sorted(ROUTES))
def test_another_name_is_404_and_names_the_served_ones(route: str, name: Any) -> None:
    refused = refusal(route, **body_for(route, model=name))
    assert (refused.status, refused.code, refused.param) == (404, "model_not_found", "model")
    assert "'canonical', 'alias', 'org/alias'" in refused.message
    assert repr(name) in refused.message


@pytest.mark.parametrize("count", [0, -1, 9, 2.0, "2", True])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_n_is_a_number_the_contract_allows(route: str, count: Any) -> None:
    refused = refusal(route, **body_for(route, n=count))
    assert (refused.param, refused.message) == ("n", f"n must be an integer from 1 to 8, not {count!r}")


def test_n_within_the_contract_passes() -> None:
    assert "n" not in chat(n=8)
    assert "n" not in prepare_completion({"prompt": "x", "n": 1}, CONTRACT, ENGINE)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_the_temperature_has_the_range_that_every_path_accepts(route: str) -> None:
    assert "temperature" not in ROUTES[route](body_for(route, temperature=2), CONTRACT, ENGINE)
    for value in (-0.1, 2.1):
        assert refusal(route, **body_for(route, temperature=value)).message == (
            f"temperature must be from 0 to 2, not {value}"
        )


@pytest.mark.parametrize("length", [0, -1, 8193, "5", 1.0, True])
@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
    ],
)
def test_a_length_no_answer_can_have_is_refused(route: str, name: str, length: Any) -> None:
    """SGLang takes 0 as no limit at all."""
    refused = refusal(route, **body_for(route, **{name: length}))
    assert (refused.param, refused.code) == (name, "invalid_value")
    assert refused.message == f"{name} must be an integer from 1 to 8192, not {length!r}"


def test_the_contract_may_limit_the_length() -> None:
    tight = Contract(max_tokens=100, max_tokens_limit=200)
    assert "max_tokens" not in chat(tight, max_tokens=200)
    with pytest.raises(Refusal, match="from 1 to 200, not 201"):
        chat(tight, max_tokens=201)


def test_two_names_of_the_length_must_agree() -> None:
    assert "max_tokens" not in chat(max_tokens=5, max_completion_tokens=5)
    refused = refusal(messages=HELLO, max_tokens=5, max_completion_tokens=6)
    assert refused.message == "max_completion_tokens and max_tokens disagree; send one of them"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_honoured_is_refused_with_the_way_out(name: str) -> None:
    refused = refusal(messages=HELLO, **{name: "x"})
    assert (refused.param, refused.code) == (name, "unsupported_parameter")
    assert refused.message == f"{name} is not supported: {REFUSED[name]}"


@pytest.mark.parametrize("name", sorted(NO_EFFECT | {"user"}))
def test_what_changes_no_answer_is_accepted(name: str) -> None:
    assert chat(**{name: "x"}) == {"model": "canonical"}


def test_an_unknown_field_is_refused_unless_it_says_nothing() -> None:
    assert chat(frobnicate=None) == {"model": "canonical"}
    refused = refusal(messages=HELLO, frobnicate=1)
    assert (refused.param, refused.code, refused.message) == (
        "frobnicate",
        "unknown_parameter",
        "Unknown parameter: 'frobnicate'",
    )
    assert refusal("/v1/completions", prompt="x", messages=HELLO).param == "messages"


def test_text_is_the_only_modality() -> None:
    assert chat(modalities=["text"]) == {"model": "canonical"}
    assert refusal(messages=HELLO, modalities=["text", "audio"]).param == "modalities"


@pytest.mark.parametrize("role", [*ROLES, "USER"])
def test_roles(role: str) -> None:
    assert prepare_chat({"messages": [{"role": role, "content": "x"}]}, CONTRACT, ENGINE) == {"model": "canonical"}


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        (None, "messages", "missing_required_parameter"),
        ([], "messages", "invalid_value"),
        ("hi", "messages", "invalid_value"),
        (["hi"], "messages[0]", "invalid_value"),
        ([*HELLO, {"role": "owner", "content": "x"}], "messages[1].role", "invalid_value"),
        ([{"content": "x"}], "messages[0].role", "invalid_value"),
        ([{"role": 3}], "messages[0].role", "invalid_value"),
    ],
)
def test_messages_that_are_none(messages: Any, param: str, code: str) -> None:
    refused = refusal(messages=messages)
    assert (refused.param, refused.code) == (param, code)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "video_url", "file"])
def test_what_is_not_text_is_refused_where_it_stands(kind: str) -> None:
    content = [{"type": "text", "text": "look"}, {"type": kind, kind: {}}]
    refused = refusal(messages=[*HELLO, {"role": "user", "content": content}])
    assert (refused.param, refused.code) == ("messages[1].content[1]", "unsupported_parameter")
    assert f"'{kind}': this server reads text only" in refused.message


def test_images_pass_where_the_contract_says_so() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:"}}]
    body = {"messages": [{"role": "user", "content": content}]}
    assert prepare_chat(body, Contract(images=True), ENGINE) == {"model": "deepseek-v4.1-flash"}


def test_text_parts_pass() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}]
    assert prepare_chat({"messages": [{"role": "assistant", "content": content}]}, CONTRACT, ENGINE)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"stream": True}, {"include_usage": True}),
        ({"stream": True, "stream_options": {}}, {"include_usage": True}),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            {"continuous_usage_stats": True, "include_usage": True},
        ),
        ({"stream": True, "stream_options": {"include_usage": False}}, None),
        ({"stream": True, "stream_options": {"include_usage": True}}, None),
        ({"stream": False}, None),
        ({}, None),
    ],
)
def test_usage_in_streams_is_the_contracts_unless_the_client_says(body: dict[str, Any], options: Any) -> None:
    always = Contract(stream_usage=True)
    assert chat(always, **body).get("stream_options") == options
    assert prepare_completion({"prompt": "x", **body}, always, ENGINE).get("stream_options") == options
    assert "stream_options" not in chat(**body)


def test_completions_get_the_sampling_defaults_that_sglang_gives_to_chats_only() -> None:
    assert prepare_completion({"prompt": "x"}, CONTRACT, ENGINE) == {
        "model": "canonical",
        "temperature": 0.6,
        "top_p": 0.95,
    }
    stated = prepare_completion({"prompt": "x", "temperature": 0, "top_p": None}, CONTRACT, ENGINE)
    assert stated == {"model": "canonical", "top_p": 0.95}


def test_completions_leave_to_sglang_what_the_checkpoint_does_not_name() -> None:
    bare = Engine(context_length=8, sampling={}, completion_fields=ENGINE.completion_fields)
    assert prepare_completion({"prompt": "x"}, CONTRACT, bare) == {"model": "canonical"}


def test_token_ids_of_a_conversation_follow_its_thinking() -> None:
    """What a golden prompt is compared with must be what a chat completion sends."""
    assert prepare_tokenize({"messages": HELLO, "thinking": {"type": "disabled"}}, CONTRACT, ENGINE) == {
        "model": "canonical",
        "chat_template_kwargs": {"thinking": False},
        "thinking": None,
        "reasoning": None,
        "reasoning_effort": None,
    }
    assert prepare_tokenize({"prompt": "x"}, CONTRACT, ENGINE) == {"model": "canonical"}
