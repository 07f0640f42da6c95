"""The hooks of the contract into SGLang 0.5.23 that act in its server process: one row per change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dsv41_serving.sglang_plugin.contract.answers import count_answer
from dsv41_serving.sglang_plugin.contract.errors import describe, describe_validation
from dsv41_serving.sglang_plugin.contract.key import ask_for_key
from dsv41_serving.sglang_plugin.contract.middleware import ContractMiddleware
from dsv41_serving.sglang_plugin.contract.requests import ROUTES
from dsv41_serving.sglang_plugin.drift import Patch

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from dsv41_serving.spec.model import Contract

_ROOMS = 2**63


def install(contract: Contract, key: str, *_state: object) -> None:
    """Put the middleware in front of SGLang's application, one shape on what pydantic refuses, and before all that the key."""
    from fastapi.exceptions import RequestValidationError  # noqa: PLC0415 - with the server, not with the plug-in
    from fastapi.responses import JSONResponse  # noqa: PLC0415
    from sglang.srt.entrypoints.http_server import app  # noqa: PLC0415

    others = app.exception_handlers[RequestValidationError]

    async def refuse(request: Request, error: RequestValidationError) -> Response:
        path = request.url.path
        if path not in ROUTES or path.startswith("/v1/messages"):
            answer: Response = await others(request, error)
            return answer
        refusal = describe_validation(error.errors())
        body = describe(refusal.status, refusal.message, refusal.param, refusal.code)
        return JSONResponse(body, status_code=refusal.status)

    app.add_exception_handler(RequestValidationError, refuse)
    app.add_middleware(ContractMiddleware, contract=contract)
    if key:
        ask_for_key(key)


def limit_answer(contract: Contract, manager: Any, obj: Any, input_ids: list[int] | None) -> None:
    """Give a request that names no length the contract's, or what the context leaves; called before the length check.

    Only the OpenAI and Anthropic handlers pass the key with None; the native API, which leaves it out, keeps its own default.
    """
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, dict) and "max_new_tokens" in params and params["max_new_tokens"] is None:
        left = manager.context_len - len(input_ids or ()) - manager.num_reserved_tokens
        obj.sampling_params = {**params, "max_new_tokens": max(1, min(contract.max_tokens, left))}


def unroll_samples(request: Any) -> None:
    """Make n samples of a disaggregated or a seeded request n requests; called once the batch size is known.

    SGLang sends a first request to fill the prefix cache and then n more, all with one bootstrap room and one seed: the
    second would wait for ever, or all be the same text.
    """
    params = request.sampling_params
    seed = params.get("sampling_seed") if isinstance(params, dict) else None
    if request.bootstrap_room in (None, []) and seed is None:
        return
    if isinstance(params, list):
        if any(each.get("n", 1) != 1 for each in params):
            raise ValueError("n above 1 with a list of sampling_params is not supported here: send one for all")
        return
    count = (params or {}).get("n") or 1
    if count == 1:
        return
    total = request.batch_size * count
    request.text = _repeat(request.text, count, single=request.is_single)
    request.input_ids = _repeat(request.input_ids, count, single=request.is_single)
    if request.bootstrap_room not in (None, []):
        # sglang-router 0.3.2 sends a room for each sample of a chat, but only one for each prompt of a completion.
        rooms = request.bootstrap_room if isinstance(request.bootstrap_room, list) else [request.bootstrap_room]
        if len(rooms) != total:
            rooms = [(room + sample) % _ROOMS for room in rooms for sample in range(count)]
        request.bootstrap_room = rooms
    for name in ("bootstrap_host", "bootstrap_port"):
        value = getattr(request, name)
        if isinstance(value, list) and len(value) != total:
            setattr(request, name, _repeat(value, count, single=False))
    request.sampling_params = {**params, "n": 1}
    if seed is not None:
        # The first sample is the one that a request for a single one gets.
        each = [{**params, "n": 1, "sampling_seed": _follow_seed(seed, sample)} for sample in range(count)]
        request.sampling_params = each * request.batch_size
    request.is_single = False
    request.batch_size = total


def _follow_seed(seed: int, sample: int) -> int:
    """Return the seed of the sample numbered `sample`, within the 64 bits that SGLang takes."""
    return (seed + sample + _ROOMS) % 2**64 - _ROOMS


def _repeat(value: Any, count: int, *, single: bool) -> Any:
    """Return every prompt `count` times in a row, as a list; None stays None."""
    if value is None:
        return None
    return [each for each in ([value] if single else value) for _ in range(count)]


def make_hooks(contract: Contract, key: str = "") -> tuple[Patch, ...]:
    """Return the table of hooks that hold an engine to `contract` and, unless it is empty, let it ask for `key`."""
    return (
        Patch(
            target="sglang.srt.entrypoints.http_server.set_global_state",
            signature="(global_state)",
            kind="before",
            hook=partial(install, contract, key),
            why="SGLang answers an unknown model with 200, ignores what it does not know, and has three shapes of error",
            effect="every request passes the contract's middleware first",
        ),
        Patch(
            target="sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
            signature="(self, obj, input_ids)",
            kind="before",
            hook=partial(limit_answer, contract),
            why="an answer without a limit runs until the context is full",
            effect="a request that names no length gets contract.max_tokens",
        ),
        Patch(
            target="sglang.srt.managers.io_struct.GenerateReqInput._handle_parallel_sampling",
            signature="(self)",
            kind="before",
            hook=unroll_samples,
            why="n > 1 between a prefill and a decode engine hangs, all samples sharing one bootstrap room; with a seed all are the same",
            effect="each sample is a request of its own with a room and a seed of its own",
        ),
        Patch(
            target="sglang.srt.managers.tokenizer_manager.TokenizerManager.collect_metrics",
            signature="(self, state, recv_obj, i)",
            kind="after",
            hook=count_answer,
            why="nothing says how answers end: empty ones, cut ones and good ones are all 200; nor what a cached prompt saved",
            effect="the engine's page has dsv41_answers_total by ending and dsv41_first_token_seconds by prompt",
        ),
    )
