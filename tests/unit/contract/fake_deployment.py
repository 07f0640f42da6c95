"""A deployment of three servers in one transport, small enough to break on purpose: `faults` names what it does wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.contract.deployment import Deployment, Server
from dsv41_serving.contract.goldens import read_goldens
from dsv41_serving.spec.model import EFFORT_BUDGETS, Contract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROUTER, PREFILL, DECODE = "http://router", "http://prefill", "http://decode"
CONTEXT = 2048
ANSWER = "The capital of France is Paris."
THOUGHT = "The user asks for a capital."
MARK = "｜DSML｜"  # noqa: RUF001 - as the token is spelt
OLD_BUDGETS = {"low": 25, "medium": 50, "high": 75, "max": 100}


class FakeDeployment(httpx.AsyncBaseTransport):
    """Answers as a router with a prefill and a decode server behind it would, but for its faults."""

    def __init__(self, *faults: str, contract: Contract | None = None) -> None:
        self.faults = set(faults)
        self.contract = contract or Contract()
        self.cache: set[str] = set()
        self.spelt: dict[int, str] = {}
        self.aborted = 0
        self.kv_tokens = 0
        self.looks = 0
        self.generated = 0

    def has(self, fault: str) -> bool:
        return fault in self.faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        server, path = request.url.host, request.url.path
        if request.method == "GET":
            return self._get(server, path)
        try:
            body = json.loads(request.content)
        except ValueError:
            return httpx.Response(500, text="oops") if self.has("json-500") else self._error(400, "not JSON")
        if path == "/tokenize":
            text = self._render(body)
            number = int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)
            self.spelt[number] = text
            return httpx.Response(200, json={"tokens": [number]})
        if path == "/detokenize":
            return httpx.Response(200, json={"text": self.spelt[body["tokens"][0]]})
        if path in {"/v1/messages", "/v1/responses"}:
            return self._other_api(path, body)
        return await self._chat(server, body)

    def _other_api(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if self.has("chat-only"):
            return self._error(404, "no such path")
        if body["model"] != self.contract.served_model_name and not self.has("apis-any-model"):
            return self._error(404, f"there is no model {body['model']}")
        thinks = self.contract.thinking and not self.has("apis-never-think")
        name = "default" if self.has("apis-other-name") else self.contract.served_model_name
        if path == "/v1/messages":
            return httpx.Response(200, json={"model": name, "content": [{"type": "thinking" if thinks else "text"}]})
        details = {"output_tokens_details": {"reasoning_tokens": 5 if thinks else 0}}
        return httpx.Response(200, json={"model": name, "output": [], "usage": details})

    def _get(self, server: str, path: str) -> httpx.Response:
        name = self.contract.served_model_name
        if path == "/v1/models":
            if (server == "router" and self.has("router-old-name")) or (server == "decode" and self.has("engine-path")):
                name = "/models/v41"
            return httpx.Response(200, json={"data": [{"id": name, "max_model_len": CONTEXT}]})
        if path == "/metrics":
            return httpx.Response(200, text=f"sglang:num_aborted_requests_total {self.aborted}\n")
        if path == "/v1/loads":
            self.looks += 1
            told = 0 if self.has("tells-late") and self.looks < 20 else self.kv_tokens
            return httpx.Response(200, json={"loads": [{"num_used_tokens": told}]})
        if path == "/contract" and server != "router":
            table = self.contract.model_dump(mode="json")
            other = {"temperature": 1.0} if server == "decode" and self.has("engine-differs") else {}
            in_force = {
                **{
                    key: table[key] for key in ("served_model_name", "reasoning_parser", "tool_call_parser", "thinking")
                },
                "sampling": {"temperature": table["temperature"], "top_p": table["top_p"], **other},
                "seeds": not self.has("speculates"),
            }
            versions = {"sglang": "0.5.23", "deepseek-recipe": "0.2.0"}
            if server == "decode" and self.has("version-changed"):
                versions = {**versions, "sglang": "0.5.24"}
            return httpx.Response(
                200, json={"contract": {**table, **other}, "in_force": in_force, "versions": versions}
            )
        return httpx.Response(404, text="")

    def _error(self, status: int, message: str) -> httpx.Response:
        if self.has("flat-errors"):
            return httpx.Response(status, json={"object": "error", "message": message})
        return httpx.Response(status, json={"error": {"message": message, "type": "invalid_request_error"}})

    def _refuse(self, server: str, body: dict[str, Any]) -> httpx.Response | None:  # noqa: PLR0911 - one per rule
        """Return the 4xx a request deserves."""
        known = {self.contract.served_model_name, *self.contract.aliases}
        text = json.dumps(body["messages"])
        if body["model"] not in known and not (
            self.has("any-model") or (server == "decode" and self.has("engine-any-model"))
        ):
            if body.get("stream") and self.has("stream-error-200"):
                return httpx.Response(200, text="data: [DONE]\n\n")
            return self._error(404, f"there is no model {body['model']}")
        if len(text.split()) > CONTEXT and not self.has("prompt-cut"):
            return self._error(400, "longer than the context")
        if '"nonsense"' in json.dumps(body.get("tools")) and not self.has("schema-unchecked"):
            return self._error(400, "bad tool schema")
        if "image_url" in text and not self.has("images-dropped"):
            return self._error(400, "text only")
        if body.get("tool_choice") == "required" and self._thinks(body) and self.has("no-forced-thinking"):
            return self._error(400, "switch thinking off")
        level = body.get("reasoning_effort")
        if level == "banana" and not self.has("effort-nonsense"):
            return self._error(400, "unknown effort")
        if level == "max" and self.has("effort-refused"):
            return self._error(400, "unknown effort")
        return None

    def _thinks(self, body: dict[str, Any]) -> bool:
        options = body.get("chat_template_kwargs") or {}
        if "thinking" in options:
            return bool(options["thinking"]) or self.has("thinking-off-ignored")
        if "thinking" in body and not self.has("thinking-config-ignored"):
            return bool(body["thinking"]["type"] != "disabled")
        if body.get("reasoning_effort") is not None:
            return body["reasoning_effort"] != "none" or self.has("effort-none-thinks")
        return self.contract.thinking and not self.has("thinking-default-off")

    def _render(self, body: dict[str, Any]) -> str:
        """Return the prompt: the golden one where there is one."""
        request = {key: value for key, value in body.items() if key != "model"}
        for golden in read_goldens():
            if golden.request == request:
                return golden.text.replace("\n\n", "\n") if self.has("other-encoder") else golden.text
        table = OLD_BUDGETS if self.has("effort-old-table") else EFFORT_BUDGETS
        level = (body.get("chat_template_kwargs") or {}).get("reasoning_effort", self.contract.reasoning_effort)
        return (
            f"Reasoning Effort: {level if isinstance(level, int) else table.get(level)} (range"
            if self._thinks(body)
            else "-"
        )

    def _prompt(self, body: dict[str, Any]) -> str:
        shown = body.get("tools") if body.get("tool_choice") != "none" or self.has("none-renders-tools") else None
        messages = [m for m in body["messages"] if m["role"] != "tool" or not self.has("result-dropped")]
        messages = [m for m in messages if not (m.get("tool_calls") and self.has("result-dropped"))]
        return json.dumps([messages, shown, self._thinks(body)])

    def _write(self, body: dict[str, Any]) -> tuple[str, str, list[dict[str, str]], bool]:
        """Return reasoning, content and calls, and whether the text is cut by no length."""
        reasoning = THOUGHT if self._thinks(body) else ""
        content, calls = self._answer(body), []
        if "ebnf" in body:
            content = json.loads(body["ebnf"].removeprefix("root ::= "))
        choice = body.get("tool_choice", "auto" if body.get("tools") else "none")
        stopped = bool(reasoning) and self.has("stops-thinking")
        if choice == "required" and not self.has("required-ignored") and not stopped:
            content, calls = "", [_call("get_weather", {"city": "Paris"})]
        if isinstance(choice, dict):
            name = "get_weather" if self.has("named-ignored") else choice["function"]["name"]
            content, calls = "", [_call(name, {"city": "Paris"})]
        if MARK in content and not self.has("parser-off"):
            content, calls = _parse(content)
            calls = calls[:1] if self.has("one-call") else calls
            content = "" if self.has("text-lost") else content
        if choice == "auto" and self.has("markup-in-auto") and not calls:
            content = f"<{MARK} calls>"
        if body.get("response_format"):
            content = "Sure!" if self.has("schema-ignored") else '{"city": "Paris", "large": true}'
        if self.has("tags-in-content") and reasoning:
            reasoning, content = "", f"<think>{reasoning}</think>{content}"
        return reasoning, content, calls, "ebnf" in body or bool(body.get("response_format"))

    def _answer(self, body: dict[str, Any]) -> str:
        default = {
            "temperature": 1.0 if self.has("temperature-openai") else self.contract.temperature,
            "top_p": self.contract.top_p,
        }
        if self.has("top-p-openai"):
            default["top_p"] = 1.0
        sampling = {key: body.get(key, value) for key, value in default.items()}
        if sampling["temperature"] == 0 or "seed" not in body:
            return ANSWER
        seed = "" if self.has("always-same") else body["seed"]
        return f"Sampled {hashlib.sha256(json.dumps([sampling, seed]).encode()).hexdigest()[:8]}."

    def _logprobs(self, body: dict[str, Any], tokens: list[str], server: str) -> list[dict[str, Any]]:
        temperature = (
            body.get("temperature", 1.0 if self.has("temperature-openai") else self.contract.temperature) or 1.0
        )
        shift = 0.5 if server == "router" and self.has("router-other-prompt") else 0.0
        count = body.get("top_logprobs", 0)
        top = [{"token": f"t{rank}", "logprob": (-1.0 - rank) / temperature - shift} for rank in range(count)]
        tokens = tokens[:-1] if self.has("logprobs-short") else tokens
        return [
            {"token": token, "logprob": top[0]["logprob"] if top else -1.0, "top_logprobs": top} for token in tokens
        ]

    async def _chat(self, server: str, body: dict[str, Any]) -> httpx.Response:
        if refused := self._refuse(server, body):
            return refused
        if body.get("n", 1) > 1 and self.has("n-hangs"):
            await asyncio.sleep(3600)
        if body.get("ignore_eos") and body.get("stream") and body.get("max_tokens", 0) > 100:
            return self._endless()
        body.setdefault("max_tokens", body.get("max_completion_tokens", 64))
        if self.has("completion-limit-ignored") and "max_completion_tokens" in body:
            body["max_tokens"] = 64
        reasoning, content, calls, uncut = self._write(body)
        limit = 10_000 if uncut else body["max_tokens"]
        thought, said = _pieces(reasoning)[:limit], _pieces(content)
        said = (said * 9 if body.get("ignore_eos") else said)[: max(0, limit - len(thought))]
        cut = len(thought) + len(said) >= limit and not calls
        reason = "tool_calls" if calls else "length" if cut else "stop"
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
        whole = "".join(said)
        for stop in stops:
            if stop in whole:
                kept = whole.index(stop) + (len(stop) if self.has("stop-kept") else 0)
                said, reason = _pieces(whole[:kept]), "stop"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(said),
            "reasoning_content": "".join(thought) or None,
        }
        if calls:
            message["tool_calls"] = [_with_id(i, call) for i, call in enumerate(calls)]
        usage = self._usage(body, len(thought) + len(said))
        logprobs = {"content": self._logprobs(body, [*thought, *said], server)} if body.get("logprobs") else None
        choices = [
            {"index": i, "message": message, "finish_reason": reason, "logprobs": logprobs, "matched_stop": None}
            for i in range(1 if self.has("n-one") else body.get("n", 1))
        ]
        if server == "router" and self.has("router-drops-field"):
            choices = [{key: value for key, value in choice.items() if key != "matched_stop"} for choice in choices]
        self.generated += usage["completion_tokens"]
        if body.get("stream"):
            return httpx.Response(200, stream=_Stream(self._chunks(body, choices, thought, said, usage)))
        name = self.contract.served_model_name
        return httpx.Response(200, json={"id": "x", "created": 1, "model": name, "choices": choices, "usage": usage})

    def _usage(self, body: dict[str, Any], written: int) -> dict[str, Any]:
        prompt = self._prompt(body)
        count = len(prompt.split())
        cached = count - 1 if prompt in self.cache else 0
        self.cache.add(prompt)
        usage: dict[str, Any] = {
            "prompt_tokens": count,
            "completion_tokens": written + self.has("usage-off"),
            "total_tokens": count + written,
        }
        if not self.has("no-cache-report"):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def _chunks(
        self,
        body: dict[str, Any],
        choices: list[dict[str, Any]],
        thought: list[str],
        said: list[str],
        usage: dict[str, Any],
    ) -> Iterator[str]:
        name = "default" if self.has("chunk-name") else self.contract.served_model_name

        def chunk(parts: list[dict[str, Any]], **more: Any) -> str:
            return f"data: {json.dumps({'id': 'x', 'model': name, 'choices': parts, **more})}\n\n"

        for choice in choices:
            index = choice["index"]
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
            deltas += [{"reasoning_content": piece} for piece in thought]
            deltas += [{"content": piece} for piece in (said[:-1] if self.has("stream-short") else said)]
            for i, call in enumerate(choice["message"].get("tool_calls", [])):
                text = call["function"]["arguments"]
                deltas.append(
                    {
                        "tool_calls": [
                            {**call, "index": i, "function": {"name": call["function"]["name"], "arguments": ""}}
                        ]
                    }
                )
                pieces = [text[at : at + 20] for at in range(0, len(text), 20)]
                deltas += [
                    {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}
                    for piece in (pieces[:-1] if self.has("arguments-short") else pieces)
                ]
            yield from (chunk([{"index": index, "delta": delta}]) for delta in deltas)
            yield chunk([{"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}])
        asked = (body.get("stream_options") or {}).get(
            "include_usage", self.contract.stream_usage or self.has("usage-unasked")
        )
        if asked:
            yield chunk([], usage=usage)
        yield "data: [DONE]\n\n"

    def _endless(self) -> httpx.Response:
        def chunks() -> Iterator[str]:
            while True:
                yield 'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "on "}}]}\n\n'

        if self.has("streams-die"):
            self.aborted += 1
            return httpx.Response(200, stream=_Stream(iter(['data: {"error": {"message": "no hand-off"}}\n\n'])))
        self.kv_tokens += 40
        return httpx.Response(200, stream=_Stream(chunks(), on_close=self._free))

    def _free(self) -> None:
        if not self.has("kv-leak"):
            self.aborted += 1
            self.kv_tokens -= 40


class _Stream(httpx.AsyncByteStream):
    def __init__(self, chunks: Iterator[str], on_close: Any = None) -> None:
        self._chunks = chunks
        self._on_close = on_close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._chunks:
                yield chunk.encode()
                await asyncio.sleep(0)
        except GeneratorExit:  # as a real connection does when nobody holds on to its lines
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if self._on_close:
            self._on_close()
            self._on_close = None


def as_deployment(fake: FakeDeployment, *, own: bool = True, front: str = "router") -> Deployment:
    """Return the fake as the suite sees a deployment of its own plan."""
    client = httpx.AsyncClient(transport=fake)
    servers = {
        "router": Server("router", "router", ROUTER),
        "prefill": Server("prefill", "prefill", PREFILL, f"{PREFILL}/metrics"),
        "decode": Server("decode", "decode", DECODE, f"{DECODE}/metrics"),
    }
    return Deployment(client, fake.contract, servers[front], (servers["prefill"], servers["decode"]), own=own)


def _call(name: str, arguments: dict[str, Any]) -> dict[str, str]:
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _with_id(index: int, call: dict[str, str]) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": dict(call)}


def _parse(text: str) -> tuple[str, list[dict[str, str]]]:
    """Return the content and the calls of V4.1's markup, as far as the suite writes it."""
    content, _, block = text.partition(f"\n\n<{MARK} calls>")
    calls = []
    for part in block.split(f'<{MARK} invoke name="')[1:]:
        name, _, rest = part.partition('"')
        arguments = {}
        for parameter in rest.split(f'<{MARK} parameter name="')[1:]:
            key, _, tail = parameter.partition('"')
            arguments[key] = tail.partition(">")[2].partition(f"</{MARK} parameter>")[0]
        calls.append(_call(name, arguments))
    return content, calls


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [words[0], *(f" {word}" for word in words[1:])] if text else []
