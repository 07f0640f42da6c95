"""A proxy in front of one engine that writes down the bodies of the requests it passes on."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

_TIMEOUT_S = 60.0


class Recorder:
    """What reached one engine. `bodies` are those of POST requests, in the order they came."""

    def __init__(self, engine_url: str) -> None:
        self.bodies: list[Any] = []
        self.url = ""
        self._engine_url = engine_url

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen on a free port of this machine while the context lasts; `url` says where."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            app = Starlette(routes=[Route("/{path:path}", self._pass_on, methods=["GET", "POST"])])
            server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield
            finally:
                server.should_exit = True
                await task

    async def _pass_on(self, request: Request) -> Response:
        raw = await request.body()
        if request.method == "POST":
            self.bodies.append(await request.json())
        async with httpx.AsyncClient(base_url=self._engine_url, timeout=_TIMEOUT_S) as client:
            kept = {key: value for key, value in request.headers.items() if key not in {"host", "content-length"}}
            answer = await client.request(request.method, request.url.path, content=raw, headers=kept)
        headers = {key: answer.headers[key] for key in ("content-type", "content-length") if key in answer.headers}
        if "content-length" in headers:
            return Response(answer.content, answer.status_code, headers)
        # An answer without a length stays one: what a router makes of it may depend on that.
        return StreamingResponse(iter((answer.content,)), answer.status_code, headers)
