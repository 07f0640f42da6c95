"""The deployment under test: where it is, what it may be asked, and how to ask it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import httpx

from dsv41_serving.check.access import open_client as access_client
from dsv41_serving.contract.reply import NoAnswerError, Reply, read_reply, read_stream
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from dsv41_serving.check.access import Access
    from dsv41_serving.plan.model import Plan
    from dsv41_serving.spec.model import Contract

TIMEOUT_S = 120.0
QUESTION = ({"role": "user", "content": "What is the capital of France?"},)
PLAIN: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
"""What makes any request answer at once."""

# A prefill or decode server answers alone when a request names this host: SGLang's own warm-up does.
_NO_PEER = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}

Kind = Literal["router", "aggregated", "prefill", "decode", "unknown"]


@dataclass(frozen=True)
class Server:
    """One HTTP server of the deployment."""

    name: str
    kind: Kind
    url: str
    metrics_url: str = ""

    @property
    def alone(self) -> dict[str, Any]:
        """Fields that let it answer without the other half of a pair."""
        return dict(_NO_PEER) if self.kind in {"prefill", "decode"} else {}


@dataclass
class Deployment:
    """What the suite talks to.

    `front` is the server that is judged, `engines` the SGLang servers behind it that may be asked directly; `own` is true for
    a deployment of this node's plan, where a missing ability is a fault and not a reason to skip.
    """

    client: httpx.AsyncClient
    contract: Contract
    front: Server
    engines: tuple[Server, ...] = ()
    own: bool = False
    generated_tokens: int = field(default=0, init=False)

    @property
    def answers(self) -> bool:
        """Whether the front completes a chat by itself; half of a prefill-decode pair does not."""
        return self.front.kind not in {"prefill", "decode"}

    async def chat(self, **fields: Any) -> Reply:
        """Return a whole completion. Raises NoAnswerError, httpx.HTTPError."""
        return await self.ask(self.front, **fields)

    async def ask(self, server: Server, **fields: Any) -> Reply:
        """Return a whole completion of `server`. Raises NoAnswerError, httpx.HTTPError."""
        reply = read_reply(await self.post("/v1/chat/completions", self.body(**fields), server))
        self.generated_tokens += reply.completion_tokens
        return reply

    async def stream(self, **fields: Any) -> Reply:
        """Return a streamed completion, put together. Raises NoAnswerError, httpx.HTTPError."""
        async with self.open_stream(**fields) as response:
            reply = await read_stream(response.aiter_lines())
        self.generated_tokens += reply.completion_tokens or reply.chunks
        return reply

    @asynccontextmanager
    async def open_stream(self, **fields: Any) -> AsyncIterator[httpx.Response]:
        """Open a stream; leaving the block closes the connection. Raises NoAnswerError, httpx.HTTPError."""
        body = {**self.body(**fields), "stream": True}
        async with self.client.stream("POST", f"{self.front.url}/v1/chat/completions", json=body) as response:
            if response.is_error:
                text = (await response.aread()).decode(errors="replace")
                raise NoAnswerError(f"HTTP {response.status_code}: {' '.join(text.split())[:200]}")
            yield response

    async def post(self, path: str, body: Mapping[str, Any] | bytes, server: Server | None = None) -> httpx.Response:
        """Send `body` as JSON (bytes as they are) and return the response, whatever its status."""
        url = f"{(server or self.front).url}{path}"
        if isinstance(body, bytes):
            return await self.client.post(url, content=body, headers={"content-type": "application/json"})
        return await self.client.post(url, json=dict(body))

    async def get_json(self, path: str, server: Server | None = None) -> Any:
        """Return the JSON at `path`. Raises NoAnswerError, httpx.HTTPError."""
        response = await self.client.get(f"{(server or self.front).url}{path}")
        if response.is_error:
            raise NoAnswerError(f"{path} says {response.status_code}")
        try:
            return response.json()
        except ValueError as error:
            raise NoAnswerError(f"{path} is not JSON: {response.text[:80]}") from error

    async def list_models(self, server: Server) -> list[str]:
        """Return the ids at /v1/models of `server`."""
        body = await self.get_json("/v1/models", server)
        try:
            return [str(entry["id"]) for entry in body["data"]]
        except (KeyError, TypeError) as error:
            raise NoAnswerError(f"/v1/models is no list of models: {str(body)[:80]}") from error

    async def tokenize(self, server: Server, request: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
        """Return the prompt `server` makes of a chat request: token ids and text. Raises NoAnswerError, httpx.HTTPError."""
        ids = await self._ask(server, "/tokenize", {"model": self.contract.served_model_name, **request}, "tokens")
        text = await self._ask(server, "/detokenize", {"tokens": ids, "skip_special_tokens": False}, "text")
        return tuple(ids), str(text)

    async def _ask(self, server: Server, path: str, body: Mapping[str, Any], key: str) -> Any:
        response = await self.post(path, body, server)
        if response.is_error:
            raise NoAnswerError(f"{path} says {response.status_code}: {' '.join(response.text.split())[:160]}")
        return response.json()[key]

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return the body of a chat request: the served name and the usual question unless `fields` say otherwise."""
        return {"model": self.contract.served_model_name, "messages": list(QUESTION), **fields}


def of_plan(plan: Plan, client: httpx.AsyncClient, url: str | None = None) -> Deployment | None:
    """Return the deployment of `plan`, judged at its router or at the server of the plan that listens on `url`.

    None when `url` is no server of the plan.
    """
    servers = {
        service.url: Server(service.name, service.kind, service.url, service.metrics_url)
        for service in (*plan.services, *plan.elsewhere)
    }
    front = servers.get((url or plan.router.url).rstrip("/"))
    if front is None:
        return None
    engines = tuple(servers[service.url] for service in plan.workers)
    return Deployment(client, plan.contract, front, engines if front.kind == "router" else (front,), own=True)


async def expect_answer(client: httpx.AsyncClient, url: str) -> None:
    """Raise InputError when nothing at all answers at `url`: one line, where every clause would say it again."""
    try:
        await client.get(f"{url}/v1/models")
    except httpx.ConnectError:
        raise InputError(
            "nothing answers", where=url, remedy="start it with `dsv41 up`, or see `dsv41 status`"
        ) from None
    except httpx.HTTPError:
        return  # it is there, and the clauses say what is wrong with it


async def of_url(url: str, client: httpx.AsyncClient, contract: Contract) -> Deployment:
    """Return the deployment at `url`, which may be anything that speaks OpenAI's protocol; SGLang says what it is.

    Raises InputError when nothing answers there.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        response = await client.get(f"{base}/model_info")
        role = response.json().get("disaggregation_mode") if response.is_success else None
    except (ValueError, AttributeError):
        role = None
    except httpx.HTTPError as error:
        raise InputError(
            f"nothing answers ({type(error).__name__})", where=base, remedy="start it, or name another --url"
        ) from None
    kinds: dict[object, Kind] = {"null": "aggregated", "prefill": "prefill", "decode": "decode"}
    front = Server("endpoint", kinds.get(role, "unknown"), base, "" if role is None else f"{base}/metrics")
    return Deployment(client, contract, front, () if role is None else (front,))


def open_client(access: Access) -> httpx.AsyncClient:
    """Return a client with the patience and the connections that the suite needs."""
    return access_client(access, TIMEOUT_S, max_connections=32)
