"""The candidate scheme in the engine: the source publishes a block list, consumers score that alone; decode, verify and prefill.

Both sides are hooked together: the published object has no dense mask, which the engine's consumer would need in decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels.engine import import_engine
from dsv41_kernels.ops.candidate_scores import compare, prefill
from dsv41_kernels.ops.candidate_scores.kernel import candidate_scores
from dsv41_kernels.ops.candidates.kernel import candidates
from dsv41_kernels.ops.index_scores.hooks import group_rows, refuse_wide_pages
from dsv41_kernels.ops.index_scores.kernel import index_scores
from dsv41_kernels.plugin.integration import Call, Default, Hook, Integration, Original
from dsv41_kernels.plugin.modes import Mode

if TYPE_CHECKING:
    from dsv41_kernels.op import Capability

_BACKEND = "srt.layers.attention.dsv4.v41_indexer.dense_blocks"


def _operands(backend: Any, inputs: Any) -> dict[str, Any] | None:
    """Arguments that our scorers share, from the engine's decode inputs; None when no row sees anything yet."""
    rows, ratio, table = inputs.req_rows.shape[0], inputs.compress_ratio, backend.req_to_token
    if rows == 0 or _capacity(backend, inputs) == 0:
        return None
    positions, indexer = inputs.positions, inputs.indexer
    return {
        "query": indexer.queries(inputs.q_lora, inputs.freqs_cis[positions]).contiguous(),
        "weight": indexer.head_weights(inputs.x).contiguous(),
        "request": inputs.req_rows.contiguous(),
        "table": table,
        "length": ((positions + 1) // ratio).to(torch.int32),
        "keys": backend.token_to_kv_pool.get_index_k_with_scale_buffer(inputs.layer_id),
        "ratio": ratio,
    }


def _capacity(backend: Any, inputs: Any) -> int:
    """Compressed positions that a row can ever see: known from shapes, so it may size a captured graph."""
    reserved: int = inputs.paged_metadata.max_compressed_seq_len
    return min(reserved, int(backend.req_to_token.shape[1]) // int(inputs.compress_ratio))


def _output(inputs: Any, target: torch.Tensor) -> torch.Tensor:
    """The part of the selection buffer that our kernel writes; the rest, if any, is padding and becomes -1."""
    rows, topk = inputs.req_rows.shape[0], inputs.indexer.index_topk
    if target.shape != (rows, topk):
        target.fill_(-1)
    return target[:rows, :topk]


def _publish(backend: Any, inputs: Any, target: torch.Tensor) -> torch.Tensor | None:
    """Score everything, select into `target`, return the blocks."""
    operands = _operands(backend, inputs)
    if operands is None:
        target.fill_(-1)
        return None
    rows = operands["query"].shape[0]
    full = index_scores(
        **operands,
        max_length=_capacity(backend, inputs),
        group_rows=group_rows(rows, getattr(inputs.paged_metadata, "rows_per_request", 1)),
    )
    selected = candidates(
        full["scores"],
        full["maxima"],
        operands["length"],
        operands["request"],
        operands["table"],
        ratio=operands["ratio"],
        count=backend.topk_blocks,
        topk=inputs.indexer.index_topk,
        slots=_output(inputs, target),
    )
    return selected["blocks"]


def _consume(backend: Any, inputs: Any, blocks: torch.Tensor | None, target: torch.Tensor) -> None:
    """Score the published blocks and select into `target`."""
    operands = _operands(backend, inputs)
    if operands is None or blocks is None:
        target.fill_(-1)
        return
    candidate_scores(**operands, blocks=blocks, topk=inputs.indexer.index_topk, slots=_output(inputs, target))


def run_publish(_original: Original, call: Call) -> Any:
    """`publish_decode`."""
    backend, inputs = call.arguments["self"], call.arguments["inputs"]
    blocks = _publish(backend, inputs, inputs.out_page_indices)
    return None if blocks is None else import_engine(f"sglang.{_BACKEND}").BlockIds(blocks=blocks)


def run_consume(_original: Original, call: Call) -> None:
    """`consume_decode`."""
    backend, inputs, published = (call.arguments[name] for name in ("self", "inputs", "published"))
    _consume(backend, inputs, None if published is None else published.blocks, inputs.out_page_indices)


def run_publish_prefill(original: Original, call: Call) -> Any:
    """`publish_prefill`. A context-parallel rank's rows are not known here and stay with the engine, in the consumers too."""
    backend, inputs = call.arguments["self"], call.arguments["inputs"]
    if not prefill.known(inputs):
        return original(*call.args, **call.kwargs)
    blocks = prefill.publish(backend, inputs, prefill.Selection.of(inputs))
    return import_engine(f"sglang.{_BACKEND}").BlockIds(blocks=blocks, rows_per_request=inputs.rows_per_request)


def run_consume_prefill(original: Original, call: Call) -> None:
    """`consume_prefill`."""
    backend, inputs, published = (call.arguments[name] for name in ("self", "inputs", "published"))
    if not prefill.known(inputs) or published is None:
        original(*call.args, **call.kwargs)
        return
    prefill.consume(backend, inputs, published.blocks, prefill.Selection.of(inputs))


def _ascending(blocks: torch.Tensor, count: int) -> torch.Tensor:
    """The engine's unordered block list as ours: ascending, -1 last, `count` wide."""
    last = torch.iinfo(torch.int32).max
    ordered = blocks.masked_fill(blocks < 0, last).sort(dim=1).values.to(torch.int32)
    ordered = torch.nn.functional.pad(ordered, (0, count - ordered.shape[1]), value=last)
    return ordered.masked_fill(ordered == last, -1).contiguous()


def _exactly(backend: Any, inputs: Any) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor] | None:
    """Operands, exact scores and bounds of decode or verify rows (`compare.score_exactly`); None when no row sees anything."""
    operands = _operands(backend, inputs)
    if operands is None or not bool((operands["length"] > 0).any()):
        return None
    scores, bound = compare.score_exactly(operands)
    return operands, scores, bound


def _positions(operands: dict[str, Any], width: int, *selections: torch.Tensor) -> list[torch.Tensor]:
    """Positions of selected slots; spare rows of the buffers are left out."""
    ratio, length = operands["ratio"], operands["length"]
    column = torch.arange(width, device=length.device)
    slots = operands["table"][operands["request"].long()][:, : width * ratio : ratio] // ratio
    slots = slots.masked_fill(column[None, :] >= length[:, None], torch.iinfo(torch.int32).max)
    return [compare.find_positions(selection[: len(length)], slots) for selection in selections]


def compare_publish(original: Original, call: Call) -> tuple[Any, float | None]:
    """The engine publishes; ours does into a buffer of its own. Both selections are compared, and both lists of blocks."""
    backend, inputs = call.arguments["self"], call.arguments["inputs"]
    theirs = original(*call.args, **call.kwargs)
    target = torch.empty_like(inputs.out_page_indices)
    blocks, exact = _publish(backend, inputs, target), _exactly(backend, inputs)
    if exact is None or blocks is None:
        return theirs, None
    operands, scores, bound = exact
    selected = _positions(operands, scores.shape[1], target, inputs.out_page_indices)
    listed = compare.excess_of_blocks(scores, bound, operands["length"], blocks, theirs.blocks)
    return theirs, max(listed, compare.excess(scores, bound, *selected))


def compare_consume(original: Original, call: Call) -> tuple[None, float | None]:
    """The engine consumes what it published; ours does too, into a buffer of its own."""
    backend, inputs, published = (call.arguments[name] for name in ("self", "inputs", "published"))
    original(*call.args, **call.kwargs)
    target, exact = torch.empty_like(inputs.out_page_indices), _exactly(backend, inputs)
    if exact is None or published is None:
        return None, None
    operands, scores, bound = exact
    blocks = _ascending(published.blocks, backend.topk_blocks)
    _consume(backend, inputs, blocks, target)
    selected = _positions(operands, scores.shape[1], target, inputs.out_page_indices)
    return None, compare.excess(compare.restrict(scores, blocks), bound, *selected)


def compare_publish_prefill(original: Original, call: Call) -> tuple[Any, float | None]:
    """The engine publishes; ours does into buffers of its own. Positions are compared, slots follow from them; and lists of blocks."""
    backend, inputs = call.arguments["self"], call.arguments["inputs"]
    theirs = original(*call.args, **call.kwargs)
    if not prefill.known(inputs) or theirs is None:
        return theirs, None
    engines = prefill.Selection.of(inputs)
    ours = engines.like()
    blocks = prefill.publish(backend, inputs, ours)
    positions = ours.positions, engines.positions
    return theirs, prefill.excess(backend, inputs, *positions, published=(blocks, theirs.blocks))


def compare_consume_prefill(original: Original, call: Call) -> tuple[None, float | None]:
    """The engine consumes what it published; ours does too, into buffers of its own."""
    backend, inputs, published = (call.arguments[name] for name in ("self", "inputs", "published"))
    original(*call.args, **call.kwargs)
    if not prefill.known(inputs) or published is None:
        return None, None
    engines = prefill.Selection.of(inputs)
    ours, blocks = engines.like(), _ascending(published.blocks, backend.topk_blocks)
    prefill.consume(backend, inputs, blocks, ours)
    return None, prefill.excess(backend, inputs, ours.positions, engines.positions, listed=blocks)


def _default(capability: Capability) -> Default:
    if capability == (9, 0):
        return Default(
            Mode.OFF,
            "H200: consumer 4x at 128K, 29x at 1M, verify 116x; served, its answers differ from the engine's as the engine's own in other chunks "
            "do (RESULTS.md); prefill is not timed yet",
        )
    return Default(Mode.OFF, "the engine has a sparse table of its own, or this GPU is not measured (RESULTS.md)")


INTEGRATION = Integration(
    op="candidate_scores",
    stock="dense scores under a mask over the context, top-k v2; prefill: torch scores and topk",
    hooks=(
        Hook(f"{_BACKEND}.DenseBlocksBackend.publish_decode", ("self", "inputs"), run_publish, compare_publish),
        Hook(
            f"{_BACKEND}.DenseBlocksBackend.consume_decode",
            ("self", "inputs", "published"),
            run_consume,
            compare_consume,
        ),
        Hook(
            f"{_BACKEND}.DenseBlocksBackend.publish_prefill",
            ("self", "inputs"),
            run_publish_prefill,
            compare_publish_prefill,
        ),
        Hook(
            f"{_BACKEND}.DenseBlocksBackend.consume_prefill",
            ("self", "inputs", "published"),
            run_consume_prefill,
            compare_consume_prefill,
        ),
    ),
    default=_default,
    check="verify of 6",
    # Not a share: what rounding to bfloat16 can do (`compare`).
    tolerance=1.0,
    runs={"candidates": "ratio 2, odd batch", "index_scores": "verify of 6 across a page, ratio 2"},
    refuses=refuse_wide_pages,
)
