# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Scores of the published blocks alone, and the best positions among them: the consumer of a block list."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsv41_kernels import layout
from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.candidates import kernel as candidates
from dsv41_kernels.ops.index_scores import kernel as index_scores
from dsv41_kernels.ops.index_scores import tile

CONFIG = index_scores.Config((1, 0), 64, 4, 3, 4)
"""One row a program, as in decode. Measured on H200; see kernels/RESULTS.md."""


@triton.jit(do_not_specialize_on_alignment=["p_length", "p_request"])  # slices of a batch begin anywhere
def candidate_scores_kernel(
    p_query,
    p_weight,
    p_request,
    p_table,
    p_length,
    p_block,
    p_keys,
    p_score,
    p_maximum,
    table_stride,
    BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    RATIO: tl.constexpr,
    T: tl.constexpr,
):
    """Programs (share, row): column 8 i + j of the row is position j of its block i."""
    row = tl.program_id(1).to(tl.int64)
    length = tl.load(p_length + row)
    columns = tl.minimum(tl.cdiv(length, 8), BLOCKS) * 8
    tiles = tl.cdiv(columns, T)
    begin = tiles * tl.program_id(0) // tl.num_programs(0)
    end = tiles * (tl.program_id(0) + 1) // tl.num_programs(0)
    if begin < end:
        o_column = tl.arange(0, HEADS)
        query = tile.load_query(p_query + row * HEADS * tile.CHANNELS, o_column < HEADS, HEADS)
        weight = tl.load(p_weight + row * HEADS + o_column).to(tl.float32) * tile.WEIGHT_SCALE
        p_slots = p_table + tl.load(p_request + row).to(tl.int64) * table_stride
        for index in range(begin, end):
            o = index * T + tl.arange(0, T)
            block = tl.load(p_block + row * BLOCKS + o // 8, mask=o < columns, other=-1)
            # A block's positions are consecutive in one index page, so its first position tells where they lie.
            valid = (block >= 0) & (block * 8 + o % 8 < length)
            token = tl.load(p_slots + block * 8 * RATIO, mask=valid, other=0)
            slot = token // RATIO + o % 8
            pairs, scale = tile.load_keys(p_keys, slot, valid)
            score = tile.score_tile(tile.expand(pairs, scale, T), query, weight, T, 1, HEADS)
            tl.store(p_score + row * (BLOCKS * 8) + o[:, None], score, mask=valid[:, None])
            score = tl.where(valid[:, None], score, float("-inf"))
            best = tl.max(tl.reshape(score, (T // 8, 8, 1)), axis=1)
            o_block = index * (T // 8) + tl.arange(0, T // 8)[:, None]
            tl.store(p_maximum + row * BLOCKS + o_block, best, mask=o_block * 8 < columns)


def candidate_scores(
    query: torch.Tensor,
    weight: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    length: torch.Tensor,
    keys: torch.Tensor,
    blocks: torch.Tensor,
    *,
    ratio: int,
    topk: int,
    slots: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    config: index_scores.Config = CONFIG,
) -> dict[str, torch.Tensor]:
    """Score the positions of each row's blocks and select the `topk` best.

    Args:
        query: rounded index queries, bfloat16 [rows, heads, 128].
        weight: head weights with the softmax scale folded in, bfloat16 or float32 [rows, heads].
        request: row of `table` of each query row, integer [rows].
        table: token slot of each position of each request, int32 [requests, positions]; as in `index_scores`.
        length: visible positions of each row, int32 [rows].
        keys: index keys, uint8 [pages, 64 * 68] (`layout.INDEX_KEY`).
        ratio: tokens per compressed position, 1 or 2.
        blocks: published blocks, int32 [rows, count], ascending, -1 padded (`candidates`).
        topk: positions to select, a power of two.
        slots: output to write into, int32 [rows, at least topk]; allocated if None.
        positions: likewise.
        config: replaces `CONFIG`.

    Returns:
        `scores` float32 [rows, 8 * count], column 8 i + j for position j of block i, unwritten where there is none; `slots` and
        `positions` int32 [rows, topk], ascending by position, valid ones first, -1 padded.

    Raises:
        UnsupportedProblemError: shapes or types that the kernel does not serve.
    """
    rows, heads, channels = query.shape
    count = blocks.shape[1]
    if channels != layout.INDEX_DIM or query.dtype != torch.bfloat16 or not query.is_contiguous():
        raise UnsupportedProblemError("candidate_scores: query is not contiguous bfloat16 [rows, heads, 128]")
    if keys.dtype != torch.uint8 or keys.shape[1:] != (tile.PAGE_BYTES.value,) or not keys.is_contiguous():
        raise UnsupportedProblemError("candidate_scores: keys is not contiguous uint8 [pages, 4352]")
    if not weight.is_contiguous() or not blocks.is_contiguous():
        raise UnsupportedProblemError("candidate_scores: weight and blocks must be contiguous")
    scores = torch.empty(rows, count * candidates.BLOCK, dtype=torch.float32, device=query.device)
    maxima = torch.empty(rows, count, dtype=torch.float32, device=query.device)
    if rows:
        processors = index_scores.multiprocessors(query.device)
        shares = min(triton.cdiv(processors * config.programs, rows), triton.cdiv(scores.shape[1], config.tile))
        candidate_scores_kernel[(shares, rows)](
            query,
            weight,
            request,
            table,
            length,
            blocks,
            keys,
            scores,
            maxima,
            table.stride(0),
            BLOCKS=count,
            HEADS=heads,
            RATIO=ratio,
            T=config.tile,
            num_warps=config.warps,
            num_stages=config.stages,
        )
    slots, positions = candidates.select_positions(
        scores,
        maxima,
        blocks,
        length,
        request,
        table,
        ratio=ratio,
        topk=topk,
        compact=True,
        slots=slots,
        positions=positions,
    )
    return {"scores": scores, "slots": slots, "positions": positions}
