"""The way of one request, in front of an application that shows what reached it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette")

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from dsv41_serving.sglang_plugin.contract.middleware import ContractMiddleware
from dsv41_serving.sglang_plugin.contract.requests import Engine
from dsv41_serving.spec.model import Contract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

CONTRACT = Contract(served_model_name="canonical", aliases=["alias"], stream_usage=True)
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
ERROR = {"object": "error", "message": "m", "type": "BadRequestError", "param": None, "code": 400}
EVENTS = (
    b'data: {"choices":[]}\n\n',
    b'data: {"error": {"object": "error", "message": "m", "type": "ABORT", "param": null, "code": 503}}\n\n',
    b"data: [DONE]\n\n",
)


async def echo(request: Request) -> Response:
    """Answer with the body that arrived; `stop` asks for an error or a stream."""
    raw = await request.body()
    assert int(request.headers["content-length"]) == len(raw)
    body = json.loads(raw)
    if body.get("stop") == "error":
        return JSONResponse(ERROR, status_code=400)
    if body.get("stop") == "text":
        return Response("upset", status_code=500, media_type="text/plain")
    if body.get("stop") == "stream":

        async def events() -> AsyncIterator[bytes]:
            for event in EVENTS:
                yield event

        return StreamingResponse(events(), media_type="text/event-stream")
    return Response(raw, media_type="application/json", headers={"x-raw": "1"})


async def model(request: Request) -> Response:
    """Answer with the name that was asked for."""
    return JSONResponse({"id": request.path_params["name"]})


async def missing(_request: Request) -> Response:
    """Refuse as SGLang's own endpoints do."""
    raise HTTPException(404, "no such thing")


async def shape(_request: Request, error: Exception) -> Response:
    """Give an exception SGLang's flat shape."""
    assert isinstance(error, HTTPException)
    return JSONResponse({**ERROR, "message": error.detail, "code": error.status_code}, status_code=error.status_code)


def make_app() -> Starlette:
    """Return the application behind the middleware."""
    routes = [
        *(Route(path, echo, methods=["POST"]) for path in (CHAT, "/v1/messages", "/v1/completions", "/other")),
        Route("/v1/models/{name:path}", model),
        Route("/v1/missing", missing),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: shape})
    fields = frozenset({"messages", "model", "prompt", "stop", "stream", "stream_options", "chat_template_kwargs"})
    engine = Engine(context_length=100, sampling={"temperature": 0.6}, chat_fields=fields, completion_fields=fields)
    app.add_middleware(ContractMiddleware, contract=CONTRACT, read=lambda _: engine)
    return app


@pytest.fixture
def client() -> TestClient:
    """A client of the application."""
    return TestClient(make_app())


def test_a_request_that_says_what_it_means_passes_byte_for_byte(client: TestClient) -> None:
    """No re-serialisation: neither the order of keys nor a float changes."""
    raw = b'{"model" : "canonical", "messages":[{"role":"user","content":"\\u00e4 0.1"}]}'
    answer = client.post(CHAT, content=raw)
    assert answer.content == raw
    assert answer.headers["x-raw"] == "1"


def test_an_alias_becomes_the_canonical_name(client: TestClient) -> None:
    assert client.post(CHAT, json={**HELLO, "model": "alias"}).json() == {**HELLO, "model": "canonical"}
    assert client.get("/v1/models/alias").json() == {"id": "canonical"}
    assert client.get("/v1/models/other").json() == {"id": "other"}


def test_what_the_contract_adds(client: TestClient) -> None:
    answer = client.post(CHAT, json={**HELLO, "model": "canonical", "stream": True})
    assert answer.json()["stream_options"] == {"include_usage": True}
    answer = client.post("/v1/completions", json={"prompt": "x"})
    assert answer.json() == {"prompt": "x", "model": "canonical", "temperature": 0.6}


def test_a_refusal_never_reaches_the_engine(client: TestClient) -> None:
    answer = client.post(CHAT, json={**HELLO, "model": "other"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "error": {
            "message": "The model 'other' does not exist; this server serves 'canonical', 'alias'",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_anthropic_clients_get_their_own_shape(client: TestClient) -> None:
    answer = client.post("/v1/messages", json={"model": "other"})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "not_found_error"
    assert client.post("/v1/messages", json={"stop": "error"}).json() == ERROR


@pytest.mark.parametrize("raw", [b"", b"{nope", b"[]", b'"x"', b'{"a":NaN}', b'{"a":"\\ud800"}', b"\xff"])
def test_a_body_that_is_no_json_object(client: TestClient, raw: bytes) -> None:
    answer = client.post(CHAT, content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


def test_a_compressed_body_does_not_go_around_the_contract(client: TestClient) -> None:
    answer = client.post(CHAT, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body must not be compressed")


def test_errors_of_the_engine_get_openais_shape(client: TestClient) -> None:
    answer = client.post(CHAT, json={**HELLO, "stop": "error"})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {"message": "m", "type": "invalid_request_error", "param": None, "code": "invalid_value"}
    }
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert client.get("/v1/missing").json()["error"]["message"] == "no such thing"
    broken = client.post(CHAT, json={**HELLO, "stop": "text"})
    assert (broken.status_code, broken.headers["content-type"]) == (500, "application/json")
    assert broken.json()["error"] == {"message": "upset", "type": "server_error", "param": None, "code": None}


@pytest.mark.parametrize("fault", [{"stop": "error"}, {"model": "other"}])
def test_a_refused_stream_has_no_length(client: TestClient, fault: dict[str, str]) -> None:
    """sglang-router 0.3.2 wraps the body of such an answer and cuts the result to the length it names."""
    answer = client.post(CHAT, json={**HELLO, "stream": True, **fault})
    assert answer.status_code in {400, 404}
    assert "content-length" not in answer.headers
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_error_inside_a_stream_gets_the_same_shape(client: TestClient) -> None:
    answer = client.post(CHAT, json={**HELLO, "stream": True, "stop": "stream"})
    first, error, last, _ = answer.content.split(b"\n\n")
    assert (first + b"\n\n", last + b"\n\n") == (EVENTS[0], EVENTS[2])
    assert json.loads(error.removeprefix(b"data: ")) == {
        "error": {"message": "m", "type": "server_error", "param": None, "code": None}
    }


def test_what_is_no_endpoint_of_the_contract_is_left_alone(client: TestClient) -> None:
    assert client.post("/other", json={"model": "other", "stop": "error"}).json() == ERROR


def test_a_client_that_leaves_is_seen_by_the_engine() -> None:
    """After the body, the application hears what the connection says."""
    heard: list[str] = []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    body = json.dumps(HELLO).encode()
    parts: list[dict[str, Any]] = [
        {"type": "http.request", "body": body[:9], "more_body": True},
        {"type": "http.request", "body": body[9:], "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    async def send(_message: Any) -> None:
        raise AssertionError

    engine = Engine(context_length=100, sampling={}, chat_fields=frozenset({"messages"}))
    middleware = ContractMiddleware(app, contract=CONTRACT, read=lambda _: engine)
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "app": None}
    asyncio.run(middleware(scope, receive, send))
    assert heard == ["http.request", "http.disconnect"]
