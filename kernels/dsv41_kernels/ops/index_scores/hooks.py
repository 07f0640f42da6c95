"""Index scores in the engine: its paged scorer for decode and verify, and the per-request scores of prefill."""

from __future__ import annotations

import contextvars
import itertools
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels.check import relative_error
from dsv41_kernels.engine import import_engine
from dsv41_kernels.ops.index_scores.kernel import CONFIGS, index_scores, split_rows
from dsv41_kernels.plugin.integration import Call, Default, Hook, Integration, Original
from dsv41_kernels.plugin.modes import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41_kernels.op import Capability

_DEEP_GEMM = 10
"""Major capability whose index pools the engine lays out for DeepGEMM (`layout.INDEX_SLOTS`)."""
_SCORING = "srt.layers.attention.dsv4.v41_indexer.scoring"
PREFILL_ROWS = 8
"""Consecutive rows of a prefill that read a key together."""
SCORE_BUDGET = 1 << 30
"""Bytes of scores that one chunk of prefill rows may take, the engine's own limit for its chunks."""

_rows_per_request: contextvars.ContextVar[int] = contextvars.ContextVar("rows_per_request", default=1)


def group_rows(rows: int, rows_per_request: int) -> int:
    """Rows that share the keys: those of one request in verify, if the kernel has a configuration for them, else one."""
    return rows_per_request if rows_per_request in CONFIGS and rows % rows_per_request == 0 else 1


def run_decode_scores(original: Original, call: Call) -> Any:
    """`decode_scores` as it is; what it calls below learns how many rows a request has, which its own arguments do not say."""
    metadata = call.arguments["inputs"].paged_metadata
    token = _rows_per_request.set(getattr(metadata, "rows_per_request", 1))
    try:
        return original(*call.args, **call.kwargs)
    finally:
        _rows_per_request.reset(token)


def run_paged(original: Original, call: Call) -> Any:
    """`fp4_index_logits_paged`. Calls under a mask stay with the engine: `candidate_scores` replaces their caller."""
    given = call.arguments
    if given["candidate_mask"] is not None:
        return original(*call.args, **call.kwargs)
    return index_scores(
        given["q"].contiguous(),
        given["weights"].contiguous(),
        given["req"].contiguous(),
        given["req_table"],
        given["lens"].to(torch.int32).contiguous(),
        given["table"],
        ratio=given["ratio"],
        max_length=given["max_len"],
        group_rows=group_rows(len(given["q"]), _rows_per_request.get()),
    )["scores"]


def compare_paged(original: Original, call: Call) -> tuple[Any, float]:
    """The error of ours against the engine's over what each row sees."""
    theirs = original(*call.args, **call.kwargs)
    ours = run_paged(original, call)
    column = torch.arange(theirs.shape[1], device=theirs.device)
    seen = column[None, :] < call.arguments["lens"][:, None]
    seen &= torch.isfinite(theirs)
    return theirs, relative_error(ours[seen], theirs[seen])


def requests(inputs: Any) -> Iterator[tuple[slice, torch.Tensor]]:
    """Rows of each request of a prefill, and the index slot of every compressed position that its newest row sees.

    Requests without rows or without a position to see are left out.
    """
    visible = [tokens // inputs.compress_ratio for tokens in inputs.seq_lens_cpu]
    first_rows = itertools.accumulate(inputs.rows_per_request, initial=0)
    first_columns = itertools.accumulate(visible, initial=0)
    for first_row, rows, first_column, count in zip(
        first_rows, inputs.rows_per_request, first_columns, visible, strict=False
    ):
        if rows and count:
            yield slice(first_row, first_row + rows), inputs.k_slots[first_column : first_column + count]


def run_prefill(original: Original, call: Call) -> Iterator[tuple[Any, Iterator[Any]]]:
    """`prefill_requests`: the same requests and chunks, scored without dequantising keys and without waiting for the device.

    A context-parallel rank's rows are not known here and stay with the engine.
    """
    inputs = call.arguments["inputs"]
    if inputs.req_rows is None or inputs.rows_per_request is None:
        yield from original(*call.args, **call.kwargs)
        return
    scoring = import_engine(f"sglang.{_SCORING}")
    ratio, indexer, positions = inputs.compress_ratio, inputs.indexer, inputs.positions
    inputs.reset_outputs()
    operands = _operands(call)
    lengths = ((positions + 1) // ratio).to(torch.int32)
    for part, slots in requests(inputs):
        count = len(slots)
        tokens = torch.arange(part.start, part.stop, device=positions.device)
        columns = torch.arange(count, device=positions.device)
        request = scoring.RequestScores(
            lc=count,
            k=min(indexer.index_topk, count),
            columns=columns,
            tok=tokens,
            lens=lengths[part],
            slots=slots,
        )
        yield request, _score_chunks(scoring.ChunkScores, request, *operands)


def _operands(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and head weights of all rows of a prefill, and the layer's keys."""
    inputs = call.arguments["inputs"]
    query = inputs.indexer.queries(inputs.q_lora, inputs.freqs_cis[inputs.positions]).contiguous()
    keys = call.arguments["token_to_kv_pool"].get_index_k_with_scale_buffer(inputs.layer_id)
    return query, inputs.indexer.head_weights(inputs.x).contiguous(), keys


def _score_rows(
    slots: torch.Tensor,
    length: torch.Tensor,
    tokens: torch.Tensor,
    query: torch.Tensor,
    weight: torch.Tensor,
    keys: torch.Tensor,
) -> torch.Tensor:
    """Scores of the rows `tokens` of one request, which see `length` of its `slots` each: float32 [rows, slots]."""
    count = len(tokens)
    return index_scores(
        query[tokens],
        weight[tokens],
        torch.zeros(count, dtype=torch.int32, device=query.device),
        slots.to(torch.int32)[None, :],
        length.contiguous(),
        keys,
        ratio=1,  # the table holds cache slots already
        max_length=len(slots),
        group_rows=PREFILL_ROWS,
        starts=split_rows([count], PREFILL_ROWS, query.device),
    )["scores"]


def _score_chunks(
    chunk_type: type, request: Any, query: torch.Tensor, weight: torch.Tensor, keys: torch.Tensor
) -> Iterator[Any]:
    """Chunks of one request's rows; -inf beyond each row's length, as the engine's consumers expect."""
    rows = request.tok.shape[0]
    step = max(PREFILL_ROWS, SCORE_BUDGET // (4 * request.lc))
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        tokens, length = request.tok[part], request.lens[part]
        scores = _score_rows(request.slots, length, tokens, query, weight, keys)
        scores.masked_fill_(request.columns[None, :] >= length[:, None], -torch.inf)
        yield chunk_type(rows=part, tok=tokens, lens=length, scores=scores)


def compare_prefill(original: Original, call: Call) -> tuple[Iterator[tuple[Any, Iterator[Any]]], float | None]:
    """The engine's requests, with ours beside the first chunk of the first: all chunks at once would fill the memory."""
    inputs = call.arguments["inputs"]
    theirs = original(*call.args, **call.kwargs)
    first = next(theirs, None) if inputs.req_rows is not None else None
    if first is None:
        return theirs, None
    request, chunks = first
    chunk = next(chunks)
    ours = _score_rows(request.slots, chunk.lens.to(torch.int32), chunk.tok, *_operands(call))
    seen = torch.isfinite(chunk.scores) & (request.columns[None, :] < chunk.lens[:, None])
    error = relative_error(ours[seen], chunk.scores[seen])
    return itertools.chain([(request, itertools.chain([chunk], chunks))], theirs), error


def refuse_wide_pages(capability: Capability) -> str | None:
    """Why the index pools of a GPU of this capability are not served: with DeepGEMM's paged logits they hold 128 keys a page."""
    if capability[0] == _DEEP_GEMM:
        return "the engine's index pages hold 128 keys on this GPU, the kernel reads pages of 64"
    return None


def _default(capability: Capability) -> Default:
    if capability == (9, 0):
        return Default(
            Mode.OFF,
            "H200: decode 1.4x at 4K, 7x at 128K, 13x at 1M, verify 9x to 25x, prefill 10x; served, its answers differ from the engine's as the "
            "engine's own in other chunks do (RESULTS.md); alone, without candidate_scores, not served yet",
        )
    return Default(Mode.OFF, "the engine scores with DeepGEMM, or this GPU is not measured (RESULTS.md)")


_INDEXER = "kernels.ops.attention.dsv4.fp4_indexer"
_DECODE = ("inputs", "token_to_kv_pool", "req_to_token", "candidate_mask", "compute_topk_plan")
_PAGED = ("q", "weights", "req", "req_table", "lens", "table", "page_size", "max_len", "ratio", "candidate_mask")

INTEGRATION = Integration(
    op="index_scores",
    stock="fp4_index_logits_paged (Triton); prefill_requests (torch)",
    hooks=(
        Hook(f"{_SCORING}.decode_scores", _DECODE, run_decode_scores, gate=True),
        Hook(f"{_INDEXER}.fp4_index_logits_paged", _PAGED, run_paged, compare_paged),
        Hook(f"{_SCORING}.prefill_requests", ("inputs", "token_to_kv_pool"), run_prefill, compare_prefill),
    ),
    default=_default,
    check="verify of 6 across a page, ratio 2",
    tolerance=2e-2,
    refuses=refuse_wide_pages,
)
