"""Thinking: on or off as the table says, and as the request says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.clause import clause, judge, unless
from dsv41_serving.contract.reply import is_openai_error, read_reply

if TYPE_CHECKING:
    from dsv41_serving.contract.clause import Outcome
    from dsv41_serving.contract.deployment import Deployment
    from dsv41_serving.contract.reply import Choice

LENGTH = 48


@clause("thinking-default")
async def thinking_default(deployment: Deployment) -> Outcome:
    """A request that says nothing about thinking gets the default of the table."""
    choice = (await deployment.chat(max_tokens=LENGTH, temperature=0)).first
    return _judge(choice, thinking=deployment.contract.thinking)


@clause("thinking-on")
async def thinking_on(deployment: Deployment) -> Outcome:
    """chat_template_kwargs.thinking true gives reasoning apart from the answer, in a stream too."""
    reply = await deployment.stream(max_tokens=LENGTH, temperature=0, chat_template_kwargs={"thinking": True})
    return _judge(reply.first, thinking=True)


@clause("thinking-off")
async def thinking_off(deployment: Deployment) -> Outcome:
    """chat_template_kwargs.thinking false gives an answer at once."""
    choice = (await deployment.chat(max_tokens=LENGTH, temperature=0, chat_template_kwargs={"thinking": False})).first
    return _judge(choice, thinking=False)


@clause("thinking-config")
async def thinking_config(deployment: Deployment) -> Outcome:
    """The spelling of DeepSeek's own API, thinking {type}, is obeyed or refused, never ignored."""
    expected = "obeyed, or a clear 4xx"
    seen, problems = [], []
    for kind, thinks in (("enabled", True), ("disabled", False)):
        body: dict[str, Any] = {
            "model": deployment.contract.served_model_name,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 2,
            "thinking": {"type": kind},
        }
        response = await deployment.post("/v1/chat/completions", body)
        if response.is_client_error:
            seen.append(f"{kind}: {response.status_code}")
            problems.append(unless(is_openai_error(response.json()), f"{kind}: the refusal has no reason"))
            continue
        choice = read_reply(response).first
        seen.append(f"{kind}: {'reasoning' if choice.reasoning else 'no reasoning'}")
        problems.append(unless(bool(choice.reasoning) is thinks, f"'{kind}' is ignored"))
    return judge(expected, ", ".join(seen), *problems)


def _judge(choice: Choice, *, thinking: bool) -> Outcome:
    ended = choice.finish_reason == "stop"
    return judge(
        "reasoning, then a clean answer" if thinking else "an answer without reasoning",
        choice,
        unless(bool(choice.reasoning) is thinking, "no reasoning_content" if thinking else "it thinks"),
        unless(choice.content or (thinking and not ended), "no content"),
        *choice.leaks,
    )


CLAUSES = (thinking_default, thinking_on, thinking_off, thinking_config)
