"""Tools: calls come back as calls, whole and streamed, and nothing of their markup as content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.clause import cannot, clause, judge, unless
from dsv41_serving.contract.deployment import PLAIN
from dsv41_serving.contract.dictation import dictate, write_calls
from dsv41_serving.contract.reply import is_openai_error, read_reply

if TYPE_CHECKING:
    from dsv41_serving.contract.clause import Outcome
    from dsv41_serving.contract.deployment import Deployment
    from dsv41_serving.contract.reply import Choice, Reply

CITIES = ("Paris", "Rome")
ASK = ({"role": "user", "content": "What is the weather in Paris, and the time in Rome?"},)
LONG_NOTE = (
    'Zürich 東京 🎉 "quoted" back\\slash <b>&amp;</b>\n' + "A sentence that goes on and on, word after word. " * 12
)
LENGTH = 120
LONG_LENGTH = 600


def _tool(name: str, parameter: dict[str, Any], key: str = "city") -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: parameter}, "required": [key], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"{name} of a city.", "parameters": schema}}


WEATHER = _tool("get_weather", {"type": "string", "enum": list(CITIES)})
TIME = _tool("get_time", {"type": "string", "enum": list(CITIES)})
NOTE = _tool("write_note", {"type": "string"}, "text")
TOOLS = [WEATHER, TIME]


@clause("tools-auto")
async def tools_auto(deployment: Deployment) -> Outcome:
    """With tools on offer an answer is text or a valid call, never markup."""
    choice = (await _ask(deployment)).first
    return judge("text or valid calls", choice, *_faults(choice), unless(choice.content or choice.calls, "neither"))


@clause("tools-required")
async def tools_required(deployment: Deployment) -> Outcome:
    """tool_choice required gives a call whose arguments match the tool's schema."""
    choice = (await _ask(deployment, tool_choice="required")).first
    return judge("a valid call, finish_reason tool_calls", choice, *_faults(choice), *_called(choice))


@clause("tools-named")
async def tools_named(deployment: Deployment) -> Outcome:
    """A named tool choice gives a call of that tool."""
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = (await _ask(deployment, tool_choice=named)).first
    others = [call.name for call in choice.calls if call.name != "get_time"]
    return judge(
        "a valid call of get_time",
        choice,
        *_faults(choice),
        *_called(choice),
        unless(not others, f"{', '.join(others)} instead"),
    )


@clause("tools-thinking")
async def tools_thinking(deployment: Deployment) -> Outcome:
    """A required call comes after the reasoning, however long that would go on, or the combination is refused with a reason."""
    expected = "reasoning and then a valid call, or a clear 4xx"
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 2 * LENGTH, "temperature": 0}
    body = deployment.body(messages=list(ASK), **fields, chat_template_kwargs={"thinking": True})
    response = await deployment.post("/v1/chat/completions", body)
    if response.is_client_error:
        reason = is_openai_error(response.json())
        return judge(expected, f"{response.status_code}: {response.text[:120]}", unless(reason, "without a reason"))
    choice = read_reply(response).first
    return judge(
        expected,
        choice,
        *_faults(choice),
        *_called(choice),
        unless(choice.reasoning, "no reasoning"),
    )


@clause("tools-none")
async def tools_none(deployment: Deployment) -> Outcome:
    """tool_choice none: no call, and the tools are not in the prompt."""
    without = await deployment.chat(messages=list(ASK), max_tokens=1, **PLAIN)
    none = await _ask(deployment, tool_choice="none", max_tokens=8)
    return judge(
        f"no call; {without.prompt_tokens} prompt tokens as without tools",
        f"{none.first}; {none.prompt_tokens} prompt tokens",
        *none.first.leaks,
        unless(not none.first.calls, "a call"),
        unless(none.prompt_tokens == without.prompt_tokens, "the tools are in the prompt"),
    )


@clause("tools-parallel")
async def tools_parallel(deployment: Deployment) -> Outcome:
    """Two calls in one answer come back as two, with ids of their own."""
    wanted = [("get_weather", {"city": "Paris"}), ("get_time", {"city": "Rome"})]
    choice = (await _ask(deployment, **dictate(write_calls(*wanted)))).first
    expected = "get_weather Paris and get_time Rome, two ids"
    if not choice.calls and not choice.leaks:
        return cannot(
            deployment, expected, f"the model did not write the dictated calls (`ebnf` has no effect): {choice}"
        )
    return judge(
        expected,
        choice,
        *_faults(choice),
        *_called(choice),
        unless([(call.name, call.parse()) for call in choice.calls] == wanted, "not the two calls that were written"),
        unless(len({call.id for call in choice.calls}) == len(choice.calls), "ids are not unique"),
    )


@clause("tools-stream")
async def tools_stream(deployment: Deployment) -> Outcome:
    """Streamed arguments, long and beyond ASCII, concatenate to the JSON that was written."""
    text = write_calls(("write_note", {"text": LONG_NOTE}))
    reply = await deployment.stream(messages=list(ASK), tools=[NOTE], max_tokens=LONG_LENGTH, **dictate(text), **PLAIN)
    choice, expected = reply.first, f"write_note with {len(LONG_NOTE)} characters in more than one chunk"
    if not choice.calls and not choice.leaks:
        return cannot(
            deployment, expected, f"the model did not write the dictated call (`ebnf` has no effect): {choice}"
        )
    return judge(
        expected,
        f"{choice} in {reply.chunks} chunks",
        *_faults(choice),
        *_called(choice),
        unless(choice.calls and choice.calls[0].parse() == {"text": LONG_NOTE}, "the arguments are not those written"),
        unless(reply.chunks > 3, "not streamed"),  # noqa: PLR2004 - role, name and end alone would be three
        unless(reply.done, "no [DONE]"),
    )


@clause("tools-text")
async def tools_text(deployment: Deployment) -> Outcome:
    """Text before a call stays content, the call's markup does not, streamed or not."""
    said = "Let me look."
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "max_tokens": LENGTH,
        **dictate(said + write_calls(("get_weather", {"city": "Rome"}))),
    }
    whole = (await deployment.chat(messages=list(ASK), **fields, **PLAIN)).first
    streamed = (await deployment.stream(messages=list(ASK), **fields, **PLAIN)).first
    expected = f"content {said!r} and a call, twice"
    if not whole.calls and not whole.leaks:
        return cannot(
            deployment, expected, f"the model did not write the dictated text (`ebnf` has no effect): {whole}"
        )
    return judge(
        expected,
        f"whole {whole}; stream {streamed}",
        *(fault for choice in (whole, streamed) for fault in (*_faults(choice), *_called(choice))),
        unless(whole.content.strip() == said, "whole: content is not the text"),
        unless(streamed.content.strip() == said, "stream: content is not the text"),
    )


@clause("tools-result")
async def tools_result(deployment: Deployment) -> Outcome:
    """A conversation with a call and its result goes on with an answer."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 °C"},
    ]
    before = await _ask(deployment, max_tokens=1)
    reply = await _ask(deployment, messages=messages, max_tokens=16)
    return judge(
        "an answer, the call and its result in the prompt",
        f"{reply.first}; prompt {before.prompt_tokens} tokens, with the result {reply.prompt_tokens}",
        *reply.first.leaks,
        unless(reply.first.content or reply.first.calls, "no answer"),
        unless(reply.prompt_tokens > before.prompt_tokens, "the result is not in the prompt"),
    )


async def _ask(deployment: Deployment, **fields: Any) -> Reply:
    body: dict[str, Any] = {"messages": list(ASK), "tools": TOOLS, "max_tokens": LENGTH, "temperature": 0, **PLAIN}
    return await deployment.chat(**{**body, **fields})


def _called(choice: Choice) -> list[str]:
    return [
        unless(choice.calls, "no call"),
        unless(choice.finish_reason == "tool_calls", f"finish_reason {choice.finish_reason!r}"),
    ]


def _faults(choice: Choice) -> list[str]:
    """Return what is wrong with the calls of an answer: unknown tools, arguments that are no JSON or off the schema."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (*TOOLS, NOTE)}
    faults = list(choice.leaks)
    for call in choice.calls:
        schema, arguments = schemas.get(call.name), call.parse()
        if not call.id:
            faults.append(f"{call.name} has no id")
        if schema is None:
            faults.append(f"there is no tool {call.name!r}")
        elif not isinstance(arguments, dict):
            faults.append(f"arguments of {call.name} are no JSON object: {call.arguments[:60]!r}")
        elif not _matches(arguments, schema):
            faults.append(f"arguments of {call.name} are off its schema: {json.dumps(arguments)[:60]}")
    return faults


def _matches(arguments: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Return whether `arguments` fit one of the schemas above: exactly the one text, from its list where it has one."""
    properties: dict[str, Any] = schema["properties"]
    return arguments.keys() == properties.keys() and all(
        isinstance(value, str) and value in properties[key].get("enum", [value]) for key, value in arguments.items()
    )


CLAUSES = (
    tools_auto,
    tools_required,
    tools_named,
    tools_thinking,
    tools_none,
    tools_parallel,
    tools_stream,
    tools_text,
    tools_result,
)
