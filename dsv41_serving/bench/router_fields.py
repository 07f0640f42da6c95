"""What each router does to each field of a request: passed, dropped, changed or refused.

Starts a second router of each kind, with the command of the plan, in front of recorders that stand before the engines of a
running stack; sends every documented field through it and, for comparison, to the engines directly.

    dsv41 --profile embedded up --detach
    python -m dsv41_serving.bench.router_fields deploy/contract/router-fields.json --profile embedded
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import httpx
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest, PDRoutingFields

from dsv41_serving.bench import request_samples as samples
from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.bench.recorder import Recorder
from dsv41_serving.errors import Dsv41Error, InputError
from dsv41_serving.facts import read_facts
from dsv41_serving.plan import Installation, make_plan
from dsv41_serving.plan.router import plan_router
from dsv41_serving.spec import load_spec
from dsv41_serving.spec.model import RouterKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from pydantic import BaseModel

    from dsv41_serving.plan.model import Plan, Service
    from dsv41_serving.spec.load import LoadedSpec

ROUTERS: tuple[RouterKind, ...] = get_args(RouterKind)
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_READY_S = 30.0
_ANSWER_S = 30.0
_FLOAT_32 = 1e-6
"""Relative error of a number that went through 32 bits."""
_ROOMS = 2**62


@dataclass(frozen=True)
class Case:
    """One request. `path` is what is looked at, `label` adds what is special about the value."""

    label: str
    path: str
    body: dict[str, Any]


def main() -> None:
    """Probe the routers and write the result file."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.bench.router_fields", description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--profile", default="embedded")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        loaded = load_spec(profile=options.profile, overrides=options.overrides)
        found = {kind: asyncio.run(probe(loaded, kind)) for kind in ROUTERS}
    except Dsv41Error as error:
        sys.exit(f"dsv41: {error}")
    command = f"{parser.prog} {options.result} --profile {options.profile}"
    result = {**describe_run(command), "routers": found}
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


async def probe(loaded: LoadedSpec, kind: RouterKind) -> dict[str, Any]:
    """Return the outcome of every field in front of a router of `kind`, what it adds, its refusals and its paths.

    Raises InputError when no stack of this description answers.
    """
    router = loaded.spec.router.model_copy(update={"kind": kind})
    loaded = replace(loaded, spec=loaded.spec.model_copy(update={"router": router}))
    plan = make_plan(loaded, read_facts(Path("/")), Installation(python=sys.executable))
    async with _router_before(plan, loaded) as (client, router_url, recorders):
        pair = _Pair(client, plan, router_url, recorders)
        added = {
            "chat": await pair.list_added(CHAT, samples.CHAT_BASE),
            "completions": await pair.list_added(COMPLETIONS, samples.COMPLETION_BASE),
        }
        return {
            "version": version(kind),
            "added": added,
            "chat": {case.label: await pair.judge(CHAT, case, added["chat"]) for case in chat_cases()},
            "completions": {
                case.label: await pair.judge(COMPLETIONS, case, added["completions"]) for case in completion_cases()
            },
            "refusals": await pair.show_refusals(),
            "paths": await pair.list_paths(),
        }


def chat_cases() -> Iterator[Case]:
    """Yield the requests of the chat API. Raises InputError when SGLang has a field without a sample."""
    yield from _field_cases(ChatCompletionRequest, samples.CHAT_BASE, samples.CHAT, samples.CHAT_WITH)
    yield from _form_cases(samples.CHAT_BASE, samples.CHAT_FORMS)
    for label, messages in samples.CHAT_MESSAGES.items():
        yield Case(label, label.partition(" ")[0], {**samples.CHAT_BASE, "messages": messages})


def completion_cases() -> Iterator[Case]:
    """Yield the requests of the completions API. Raises InputError when SGLang has a field without a sample."""
    yield from _field_cases(CompletionRequest, samples.COMPLETION_BASE, samples.COMPLETIONS, samples.COMPLETIONS_WITH)
    yield from _form_cases(samples.COMPLETION_BASE, samples.COMPLETION_FORMS)


def judge_arrival(sent: Any, arrived: Any, elsewhere: str = "") -> tuple[str, str]:
    """Return the outcome of a value that was `sent`, and how it differs; `elsewhere` names another field that has it."""
    if sent == arrived:
        return "passed", ""
    if arrived is None:
        return ("changed", f"arrives as {elsewhere}") if elsewhere else ("dropped", "")
    if isinstance(sent, float) and isinstance(arrived, float) and math.isclose(sent, arrived, rel_tol=_FLOAT_32):
        return "changed", f"arrives as {arrived!r}: 32 bits"
    return "changed", f"arrives as {json.dumps(arrived, ensure_ascii=False)}"


def look(body: Any, path: str) -> Any:
    """Return what stands at `path`, such as `messages[1].name`, or None."""
    found = body
    for part in path.replace("[", ".[").split("."):
        try:
            found = found[int(part[1:-1])] if part.startswith("[") else found.get(part)
        except (AttributeError, IndexError, TypeError):
            return None
    return found


class _Pair:
    """The router under test, and the engines behind its recorders."""

    def __init__(self, client: httpx.AsyncClient, plan: Plan, router_url: str, recorders: Sequence[Recorder]) -> None:
        self._client = client
        self._plan = plan
        self._router_url = router_url
        self._recorders = recorders

    async def judge(self, api: str, case: Case, added: Mapping[str, Any]) -> dict[str, Any]:
        """Send one case both ways and return what became of it; `added` is what arrives with every request."""
        status, text = await self._through(api, case.body)
        direct = await self._direct(api, case.body)
        sent = look(case.body, case.path)
        row: dict[str, Any] = {"sent": sent, "status": status, "engine_status": direct}
        bodies = [body for recorder in self._recorders for body in recorder.bodies]
        if not bodies:
            return {**row, "outcome": "refused", "how": text[:300]}
        # Both halves of a pair get the same body; the first to differ decides.
        outcomes = [judge_arrival(sent, look(body, case.path), _find_elsewhere(case, body, added)) for body in bodies]
        outcome, how = next((each for each in outcomes if each[0] != "passed"), outcomes[0])
        return {**row, "outcome": outcome, **({"how": how} if how else {})}

    async def list_added(self, api: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that arrive although nobody sent them."""
        await self._through(api, body)
        arrived = self._recorders[-1].bodies[-1]
        known = {*body, *PDRoutingFields.model_fields}
        return {key: value for key, value in arrived.items() if key not in known and value != body.get("max_tokens")}

    async def show_refusals(self) -> dict[str, Any]:
        """Return how refusals of an engine and of the router look to a client."""
        base = samples.CHAT_BASE
        requests = {
            "unknown model": {**base, "model": "another"},
            "unknown model, stream": {**base, "model": "another", "stream": True},
            "unknown role": {**base, "messages": [{"role": "owner", "content": "x"}]},
            "no messages": {"model": samples.MODEL},
        }
        shown = {}
        for name, body in requests.items():
            answer = await self._client.post(f"{self._router_url}{CHAT}", json=body)
            shown[name] = {
                "status": answer.status_code,
                "content_type": answer.headers.get("content-type"),
                "body": answer.text,
            }
        return shown

    async def list_paths(self) -> dict[str, int]:
        """Return the status of every path that an engine of this project answers."""
        gets = ("/v1/models", f"/v1/models/{samples.MODEL}", "/contract", "/model_info", "/server_info", "/metrics")
        posts: dict[str, dict[str, Any]] = {
            CHAT: samples.CHAT_BASE,
            COMPLETIONS: samples.COMPLETION_BASE,
            "/v1/responses": {"model": samples.MODEL, "input": "x", "max_output_tokens": 2},
            "/v1/messages": {"model": samples.MODEL, "messages": [samples.QUESTION], "max_tokens": 2},
            "/v1/tokenize": {"model": samples.MODEL, "prompt": "x"},
            "/tokenize": {"model": samples.MODEL, "prompt": "x"},
            "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 2}},
        }
        paths = {}
        for path in gets:
            paths[f"GET {path}"] = (await self._client.get(f"{self._router_url}{path}")).status_code
        for path, body in posts.items():
            paths[f"POST {path}"] = (await self._client.post(f"{self._router_url}{path}", json=body)).status_code
        return paths

    async def _through(self, api: str, body: dict[str, Any]) -> tuple[int | str, str]:
        for recorder in self._recorders:
            recorder.bodies.clear()
        try:
            answer = await self._client.post(f"{self._router_url}{api}", json=body)
        except httpx.TimeoutException:
            return "timeout", ""
        return answer.status_code, answer.text

    async def _direct(self, api: str, body: dict[str, Any]) -> int | str:
        """Send `body` to the engines as a router would that changes nothing; return what the last of them answers."""
        prefill = next((engine for engine in self._plan.engines if engine.kind == "prefill"), None)
        extra: dict[str, Any] = {}
        if prefill is not None:
            prompts = body.get("prompt")
            count = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], str) else 1
            host, port = [prefill.host] * count, [prefill.ports["bootstrap"]] * count
            room = [random.randrange(_ROOMS) for _ in range(count)]  # noqa: S311 - an id, not a secret
            single = count == 1
            extra = {
                "bootstrap_host": host[0] if single else host,
                "bootstrap_port": port[0] if single else port,
                "bootstrap_room": room[0] if single else room,
            }
        posts = [self._client.post(f"{engine.url}{api}", json={**body, **extra}) for engine in self._plan.engines]
        try:
            return (await asyncio.gather(*posts))[-1].status_code
        except httpx.TimeoutException:
            return "timeout"


def _find_elsewhere(case: Case, arrived: dict[str, Any], added: Mapping[str, Any]) -> str:
    """Return the top-level field that has the value of the case although nobody sent it and nothing else explains it."""
    sent = look(case.body, case.path)
    others = [value for key, value in case.body.items() if key != case.path]
    if sent in others:
        return ""
    return next((key for key in arrived if key not in case.body and key not in added and arrived[key] == sent), "")


def _field_cases(
    model: type[BaseModel],
    base: dict[str, Any],
    values: dict[str, Any],
    companions: dict[str, dict[str, Any]],
) -> Iterator[Case]:
    documented = [name for name in model.model_fields if name not in PDRoutingFields.model_fields]
    missing = [name for name in documented if name not in values and name not in companions]
    if missing:
        raise InputError(
            f"no sample for {', '.join(missing)}",
            where=model.__name__,
            remedy="add one to dsv41_serving/bench/request_samples.py",
        )
    for name in documented:
        fields = companions.get(name, {name: values.get(name)})
        # Two names of one length disagree; only one is sent.
        kept = {key: value for key, value in base.items() if key != "max_tokens" or name != "max_completion_tokens"}
        yield Case(name, name, {**kept, **fields})


def _form_cases(base: dict[str, Any], forms: dict[str, dict[str, Any]]) -> Iterator[Case]:
    for label, fields in forms.items():
        body = {key: value for key, value in {**base, **fields}.items() if value is not None}
        yield Case(label, label.partition(" ")[0], body)


@asynccontextmanager
async def _router_before(
    plan: Plan, loaded: LoadedSpec
) -> AsyncIterator[tuple[httpx.AsyncClient, str, list[Recorder]]]:
    """Run the router of the plan on free ports in front of recorders of its engines."""
    # Without kept connections: a server that refuses a request closes one, and the next request would fail on it.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=_ANSWER_S, limits=limits) as client:
        recorders = [Recorder(engine.url) for engine in plan.engines]
        for engine in plan.engines:
            try:
                (await client.get(f"{engine.url}/v1/models")).raise_for_status()
            except httpx.HTTPError as error:
                raise InputError(
                    f"does not answer ({type(error).__name__})", where=engine.url, remedy="`dsv41 up --detach` first"
                ) from None
        async with _serve_all(recorders):
            router = _plan_second_router(plan, loaded, recorders)
            quiet = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(*router.argv, stdout=quiet, stderr=quiet)
            try:
                await _wait_ready(client, router)
                yield client, router.url, recorders
            finally:
                process.terminate()
                await process.wait()


@asynccontextmanager
async def _serve_all(recorders: Sequence[Recorder]) -> AsyncIterator[None]:
    if not recorders:
        yield
        return
    async with recorders[0].serve(), _serve_all(recorders[1:]):
        yield


def _plan_second_router(plan: Plan, loaded: LoadedSpec, recorders: Sequence[Recorder]) -> Service:
    engines = [
        engine.model_copy(update={"port": int(recorder.url.rpartition(":")[2])})
        for engine, recorder in zip(plan.engines, recorders, strict=True)
    ]
    ports = {"port": _free_port(), "metrics_port": _free_port()}
    spec = loaded.spec.model_copy(update={"router": loaded.spec.router.model_copy(update=ports)})
    return plan_router(spec, engines, python=sys.executable)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def _wait_ready(client: httpx.AsyncClient, router: Service) -> None:
    for _ in range(int(_READY_S / 0.2)):
        try:
            if (await client.get(f"{router.url}/readiness")).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.2)
    raise InputError("the router registered no workers", where=router.url, remedy="run its command by hand")


if __name__ == "__main__":
    main()
