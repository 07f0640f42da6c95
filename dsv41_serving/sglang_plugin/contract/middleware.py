"""The way of one request through the contract: read it, refuse or normalise it, pass it on, give every error one shape.

A plain ASGI middleware in front of SGLang's FastAPI application. A body that already says what it means is passed on byte
for byte; chunks of a stream are looked at, not parsed.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from dsv41_serving.sglang_plugin.contract.errors import (
    INVALID_JSON,
    Refusal,
    describe,
    describe_anthropic,
    reshape,
)
from dsv41_serving.sglang_plugin.contract.report import PATH, read_engine, report_contract
from dsv41_serving.sglang_plugin.contract.requests import ROUTES, Engine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from dsv41_serving.spec.model import Contract

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

MODELS = "/v1/models/"
_ANTHROPIC = "/v1/messages"
_JSON = (b"content-type", b"application/json")
_STREAM_ERROR = b'data: {"error"'


class ContractMiddleware:
    """Holds every request to the table `contract`. `read` returns what the rules need to know of the engine behind it."""

    def __init__(self, app: App, *, contract: Contract, read: Callable[[Any], Engine] = read_engine) -> None:
        self._app = app
        self._contract = contract
        self._read = read
        self._engine: Engine | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        path = scope.get("path", "")
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif path == PATH and scope["method"] == "GET":
            report = report_contract(scope["app"], self._contract, self._know(scope))
            await _answer(send, HTTPStatus.OK, report)
        elif path in ROUTES and scope["method"] == "POST":
            await self._serve(scope, receive, send)
        elif path.startswith(MODELS):
            name = path.removeprefix(MODELS)
            canonical = self._contract.served_model_name if name in self._contract.aliases else name
            await self._app({**scope, "path": MODELS + canonical}, receive, _OneShape(send, path))
        elif path.startswith("/v1/"):
            await self._app(scope, receive, _OneShape(send, path))
        else:
            await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        raw = await _read_body(receive)
        streamed = False
        try:
            body = _parse(raw, scope)
            streamed = body.get("stream") is True
            changes = ROUTES[path](body, self._contract, self._know(scope))
        except Refusal as refusal:
            await _refuse(send, path, refusal, sized=not streamed)
            return
        changes = {key: value for key, value in changes.items() if body.get(key) != value}
        if changes:
            raw = orjson.dumps({**body, **changes})
            scope = {**scope, "headers": _resize(scope["headers"], len(raw))}
        await self._app(scope, _replay(raw, receive), _OneShape(send, path, sized=not streamed))

    def _know(self, scope: Scope) -> Engine:
        if self._engine is None:
            self._engine = self._read(scope["app"])
        return self._engine


class _OneShape:
    """Passes an answer on; the body of an error, and an error inside a stream, is given OpenAI's shape first."""

    def __init__(self, send: Send, path: str, *, sized: bool = True) -> None:
        self._send = send
        self._anthropic = path.startswith(_ANTHROPIC)
        self._sized = sized
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if self._anthropic:
            await self._send(message)
        elif message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
            self._start = message
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._flush(self._start)
        elif message["type"] == "http.response.body" and message.get("body", b"").startswith(_STREAM_ERROR):
            await self._send({**message, "body": _reshape_event(message["body"])})
        else:
            await self._send(message)

    async def _flush(self, start: Message) -> None:
        try:
            found = orjson.loads(self._body)
        except orjson.JSONDecodeError:
            found = self._body.decode(errors="replace")
        kept = [item for item in start["headers"] if item[0].lower() not in (b"content-length", b"content-type")]
        await _answer(self._send, start["status"], reshape(start["status"], found), headers=kept, sized=self._sized)


def _parse(raw: bytes, scope: Scope) -> dict[str, Any]:
    if any(name == b"content-encoding" for name, _ in scope["headers"]):
        raise Refusal("the body must not be compressed", code=INVALID_JSON)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(f"the body is not valid JSON: {error}", code=INVALID_JSON) from None
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object", code=INVALID_JSON)
    return body


async def _read_body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _replay(raw: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the whole body once, then what the connection says (that the client left)."""
    pending = [raw]

    async def replayed() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replayed


def _resize(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [item for item in headers if item[0] not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode())]


def _reshape_event(event: bytes) -> bytes:
    line, separator, rest = event.partition(b"\n")
    try:
        found = orjson.loads(line.removeprefix(b"data: "))
    except orjson.JSONDecodeError:
        return event
    status = found["error"].get("code") if isinstance(found["error"], dict) else None
    shaped = reshape(status if isinstance(status, int) else HTTPStatus.INTERNAL_SERVER_ERROR, found)
    return b"data: " + orjson.dumps(shaped) + separator + rest


async def _refuse(send: Send, path: str, refusal: Refusal, *, sized: bool) -> None:
    if path.startswith(_ANTHROPIC):
        body = describe_anthropic(refusal.status, refusal.message)
    else:
        body = describe(refusal.status, refusal.message, refusal.param, refusal.code)
    await _answer(send, refusal.status, body, sized=sized)


async def _answer(
    send: Send,
    status: int,
    body: dict[str, Any],
    *,
    headers: list[tuple[bytes, bytes]] | None = None,
    sized: bool = True,
) -> None:
    """Send `body` as JSON.

    The length is left out for a client that asked for a stream: sglang-router 0.3.2 wraps such an answer into an event
    and cuts that to the length of what it wrapped.
    """
    content = orjson.dumps(body)
    size = [(b"content-length", str(len(content)).encode())] if sized else []
    await send({"type": "http.response.start", "status": int(status), "headers": [*(headers or []), _JSON, *size]})
    await send({"type": "http.response.body", "body": content})
