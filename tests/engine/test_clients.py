"""Clients that people use, against the real stack: a chat, a stream and a tool call each."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.stack import MODEL, StackUnderTest

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = "What is the capital of France?"
PLAIN = {"chat_template_kwargs": {"thinking": False}}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ENABLE = "`uv pip install litellm==1.83.0 llm==0.30`, or install the lock: `make env`"


def needs(package: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is not installed; {ENABLE}")


class TestOpenai:
    def test_chat(self, stack: StackUnderTest) -> None:
        reply = stack.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=80, temperature=0
        )
        message = reply.choices[0].message
        assert "Paris" in (message.content or "")
        assert message.model_extra
        assert message.model_extra["reasoning_content"]
        assert reply.model == MODEL

    def test_stream_with_usage(self, stack: StackUnderTest) -> None:
        chunks = list(
            stack.client().chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": QUESTION}],
                max_tokens=40,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=PLAIN,
            )
        )
        assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert {chunk.model for chunk in chunks} == {MODEL}
        assert chunks[-1].usage
        assert chunks[-1].usage.completion_tokens > 3

    def test_tool_call_and_its_result(self, stack: StackUnderTest) -> None:
        client = stack.client()
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
        reply = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[WEATHER],  # type: ignore[list-item]
            tool_choice="required",
            max_tokens=120,
            temperature=0,
            extra_body=PLAIN,
        )
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls
        call = message.tool_calls[0]
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
        ]
        answer = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[WEATHER],
            max_tokens=24,
            temperature=0,
            extra_body=PLAIN,  # type: ignore[list-item]
        )
        assert answer.choices[0].message.content

    def test_unknown_model_is_the_clients_not_found_error(self, stack: StackUnderTest) -> None:
        import openai

        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            stack.client().chat.completions.create(
                model="no-such-model", messages=[{"role": "user", "content": QUESTION}], max_tokens=1
            )


@needs("litellm")
@pytest.mark.filterwarnings("ignore")
class TestLitellm:
    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its table of prices is in the package; it need not ask the network for a newer one."""
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")

    @staticmethod
    def ask(stack: StackUnderTest, **fields: Any) -> Any:
        import litellm

        options = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 80, "temperature": 0, **fields}
        return litellm.completion(
            model=f"openai/{MODEL}", api_base=f"{stack.url}/v1", api_key="none", timeout=120, num_retries=0, **options
        )

    def test_chat_separates_reasoning(self, stack: StackUnderTest) -> None:
        message = self.ask(stack).choices[0].message
        assert "Paris" in message.content
        assert message.reasoning_content

    def test_stream(self, stack: StackUnderTest) -> None:
        chunks = self.ask(stack, stream=True, max_tokens=40, extra_body=PLAIN)
        assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def test_tool_call(self, stack: StackUnderTest) -> None:
        choice = self.ask(stack, tools=[WEATHER], tool_choice="required", max_tokens=120, extra_body=PLAIN).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments)["city"] in {"Paris", "Rome"}


@needs("llm")
@pytest.mark.filterwarnings("ignore")
class TestLlm:
    """The agent client `llm`: it runs the tools itself and sends their results back."""

    @pytest.fixture
    def model(self, stack: StackUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """The served model as `llm` is configured for it; plug-ins of other packages stay out."""
        monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
        monkeypatch.setenv("LLM_LOAD_PLUGINS", "")
        from llm.default_plugins.openai_models import Chat

        return Chat(MODEL, model_name=MODEL, api_base=f"{stack.url}/v1", supports_tools=True)

    def test_chat(self, model: Any) -> None:
        assert "Paris" in model.prompt(QUESTION, stream=False, key="none", temperature=0, max_tokens=80).text()

    def test_stream(self, model: Any) -> None:
        pieces = list(model.prompt(QUESTION, stream=True, key="none", temperature=0, max_tokens=80))
        assert len(pieces) > 2
        assert "Paris" in "".join(pieces)

    def test_tool_is_run_and_its_result_answered(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client offers no tool choice, so the first request is made to require a call; the rest is its own loop."""
        from llm import Tool

        asked: list[str] = []

        def look(city: str) -> str:
            asked.append(city)
            return "Sunny, 21 degrees."

        function = WEATHER["function"]
        tool = Tool(function["name"], function["description"], function["parameters"], look)

        build = type(model).build_kwargs

        def require_first(self: Any, prompt: Any, stream: bool) -> dict[str, Any]:  # noqa: FBT001 - the client's signature
            kwargs = build(self, prompt, stream)
            choice = {} if asked else {"tool_choice": "required"}
            return {**kwargs, **choice, "extra_body": PLAIN}

        monkeypatch.setattr(type(model), "build_kwargs", require_first)
        chain = model.conversation(chain_limit=3).chain(
            "What is the weather in Paris?",
            tools=[tool],
            stream=False,
            key="none",
            options={"temperature": 0, "max_tokens": 120},
        )
        assert chain.text()
        assert asked in (["Paris"], ["Rome"])
