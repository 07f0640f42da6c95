# ruff: noqa: ANN201, PLR2004
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Selection after a full scan: the best blocks of 8 positions, and the best positions within blocks."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from dsv41_kernels import layout
from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.candidates import select

BLOCK = 8
"""Positions of a candidate block (fixed by the model: candidate_block_size)."""
_CHUNK = 16384
"""Scores that one program holds in registers."""
_MAX_CHUNKS = 8
"""Chunks of block maxima of one row: 8 * 16384 blocks are 1,048,576 positions."""
_MAX_ROWS = 65536


@triton.jit
def select_blocks_kernel(
    p_maximum,
    p_length,
    p_part,
    p_ticket,
    p_block,
    maximum_stride,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PIN: tl.constexpr,
):
    """Programs (chunk, row): the K best blocks of a chunk; the row's last program selects among those of all chunks."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(tl.load(p_length + row), 8)
    chunks = tl.cdiv(blocks, CHUNK)
    o_kept = tl.arange(0, K)
    if blocks <= K:
        if chunk == 0:
            tl.store(p_block + row * K + o_kept, tl.where(o_kept < blocks, o_kept, -1))
    elif chunk < chunks:
        block = chunk * CHUNK + tl.arange(0, CHUNK)
        valid = block < blocks
        key = select.order(tl.load(p_maximum + row * maximum_stride + block, mask=valid, other=0.0))
        key = tl.where(valid, key, select.LOWEST)
        if PIN:
            key = tl.where(block == blocks - 1, select.HIGHEST, key)
        taken, rank, count = select.take_largest(key, K)
        if CHUNKS == 1:
            tl.store(p_block + row * K + rank, block, mask=taken)
        elif chunks == 1:
            tl.store(p_block + row * K + rank, block, mask=taken)
        else:
            p_list = p_part + (row * CHUNKS + chunk) * K
            tl.store(p_list + rank, block, mask=taken)
            tl.store(p_list + o_kept, -1, mask=o_kept >= count)
            tl.debug_barrier()
            if tl.atomic_add(p_ticket + row, 1, sem="acq_rel") == chunks - 1:
                tl.store(p_ticket + row, 0)
                o_part = tl.arange(0, CHUNKS * K)
                m_part = o_part < chunks * K
                best = tl.load(p_part + row * CHUNKS * K + o_part, mask=m_part, other=-1, cache_modifier=".cg")
                kept = best >= 0
                key = select.order(tl.load(p_maximum + row * maximum_stride + best, mask=kept, other=0.0))
                key = tl.where(kept, key, select.LOWEST)
                if PIN:
                    key = tl.where(best == blocks - 1, select.HIGHEST, key)
                taken, rank, count = select.take_largest(key, K)
                # Columns go out at their rank and come back for the gather: it then runs on K values, not on all.
                tl.store(p_block + row * K + rank, o_part, mask=taken)
                tl.debug_barrier()
                column = tl.load(p_block + row * K + o_kept)
                tl.debug_barrier()
                tl.store(p_block + row * K + o_kept, tl.load(p_part + row * CHUNKS * K + column, cache_modifier=".cg"))


@triton.jit
def select_positions_kernel(
    p_score,
    p_block,
    p_length,
    p_request,
    p_table,
    p_slot,
    p_position,
    score_stride,
    table_stride,
    slot_stride,
    position_stride,
    BLOCKS: tl.constexpr,
    TOPK: tl.constexpr,
    RATIO: tl.constexpr,
    COMPACT: tl.constexpr,
):
    """Program (row): the TOPK best positions of the row's blocks, as cache slots and as positions."""
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCKS * 8)
    block = tl.load(p_block + row * BLOCKS + o // 8)
    position = block * 8 + o % 8
    valid = (block >= 0) & (position < tl.load(p_length + row))
    column = o if COMPACT else position
    score = tl.load(p_score + row * score_stride + column, mask=valid, other=0.0)
    valid = valid & (score > float("-inf"))  # false for NaN too: neither is ever selected
    taken, rank, count = select.take_largest(tl.where(valid, select.order(score), select.LOWEST), TOPK)
    # Columns go out at their rank and come back for the gathers: they then run on TOPK values, not on all.
    p_chosen = p_position + row * position_stride
    tl.store(p_chosen + rank, o, mask=taken)
    tl.debug_barrier()
    o_chosen = tl.arange(0, TOPK)
    m_chosen = o_chosen < count
    column = tl.load(p_chosen + o_chosen, mask=m_chosen, other=0)
    tl.debug_barrier()
    position = tl.load(p_block + row * BLOCKS + column // 8) * 8 + column % 8
    p_tokens = p_table + tl.load(p_request + row).to(tl.int64) * table_stride
    token = tl.load(p_tokens + position * RATIO, mask=m_chosen, other=0)
    tl.store(p_chosen + o_chosen, tl.where(m_chosen, position, -1))
    tl.store(p_slot + row * slot_stride + o_chosen, tl.where(m_chosen, token // RATIO, -1))


@functools.cache
def _tickets(device: torch.device) -> torch.Tensor:
    """Zeroed arrival counters, one a row. Every launch leaves them at zero; launches on one device run in stream order."""
    return torch.zeros(_MAX_ROWS, dtype=torch.int32, device=device)


def _refuse(name: str, *checks: tuple[bool, str]) -> None:
    wrong = [text for bad, text in checks if bad]
    if wrong:
        raise UnsupportedProblemError(f"{name}: {'; '.join(wrong)}")


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def select_blocks(maxima: torch.Tensor, length: torch.Tensor, *, count: int, pin_newest: bool) -> torch.Tensor:
    """The `count` blocks with the largest maximum of each row, ascending, -1 padded: int32 [rows, count].

    Args:
        maxima: block maxima, float32 [rows, blocks]; what lies beyond ceil(length / 8) is not read.
        length: visible positions of each row, int32 [rows].
        count: blocks to keep, a power of two up to 2048; a row with no more blocks keeps them all.
        pin_newest: always keep the newest, possibly partial block.

    Of equal maxima the lower block is kept.
    """
    rows, width = maxima.shape
    chunk = min(_CHUNK, triton.next_power_of_2(max(width, count)))
    chunks = triton.next_power_of_2(triton.cdiv(max(width, 1), chunk))
    _refuse(
        "select_blocks",
        (not _is_power_of_two(count) or count > 2048, f"count {count} is not a power of two up to 2048"),
        (maxima.dtype != torch.float32 or maxima.stride(1) != 1, "maxima is not float32 with contiguous rows"),
        (length.dtype != torch.int32 or not length.is_contiguous(), "length is not contiguous int32"),
        (chunks > _MAX_CHUNKS, f"{width} blocks exceed {_CHUNK * _MAX_CHUNKS}"),
        (rows > _MAX_ROWS, f"{rows} rows exceed {_MAX_ROWS}"),
    )
    kept = torch.empty(rows, count, dtype=torch.int32, device=maxima.device)
    if rows:
        parts = torch.empty(rows if chunks > 1 else 0, chunks, count, dtype=torch.int32, device=maxima.device)
        select_blocks_kernel[(chunks, rows)](
            maxima,
            length,
            parts,
            _tickets(maxima.device),
            kept,
            maxima.stride(0),
            K=count,
            CHUNK=chunk,
            CHUNKS=chunks,
            PIN=pin_newest,
            num_warps=warps(chunk),
        )
    return kept


def warps(scores: int) -> int:
    """Warps of a program that holds `scores`: 16 scores a thread, measured on H200 (kernels/RESULTS.md)."""
    return max(4, min(32, scores // 512))


def select_positions(
    scores: torch.Tensor,
    blocks: torch.Tensor,
    length: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    *,
    ratio: int,
    topk: int,
    compact: bool,
    slots: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `topk` best positions within each row's blocks: cache slots and positions, int32 [rows, topk], -1 padded.

    Both are ascending by position, valid ones first. -inf and NaN are never selected; of equal scores the lower position is.

    Args:
        scores: float32 [rows, n]: of every position, or with `compact` of the listed blocks only, column 8 i + j for
            position j of block i.
        blocks: int32 [rows, blocks], ascending, -1 padded; a power of two up to 2048.
        length, request, table, ratio: as in `index_scores`.
        topk: positions to select, a power of two.
        compact: which form `scores` has.
        slots, positions: outputs to write into, int32 [rows, at least topk]; allocated if None.
    """
    rows, count = blocks.shape
    _refuse(
        "select_positions",
        (not _is_power_of_two(count) or count > 2048, f"{count} blocks are not a power of two up to 2048"),
        (not _is_power_of_two(topk), f"topk {topk} is not a power of two"),
        (blocks.dtype != torch.int32 or not blocks.is_contiguous(), "blocks is not contiguous int32"),
        (scores.dtype != torch.float32 or scores.stride(1) != 1, "scores is not float32 with contiguous rows"),
        (length.dtype != torch.int32 or not length.is_contiguous(), "length is not contiguous int32"),
        (table.dtype != torch.int32 or table.stride(1) != 1, "table is not int32 with contiguous rows"),
    )
    slots = torch.empty(rows, topk, dtype=torch.int32, device=scores.device) if slots is None else slots
    positions = torch.empty(rows, topk, dtype=torch.int32, device=scores.device) if positions is None else positions
    if rows:
        select_positions_kernel[(rows,)](
            scores,
            blocks,
            length,
            request,
            table,
            slots,
            positions,
            scores.stride(0),
            table.stride(0),
            slots.stride(0),
            positions.stride(0),
            BLOCKS=count,
            TOPK=topk,
            RATIO=ratio,
            COMPACT=compact,
            num_warps=warps(count * BLOCK),
        )
    return slots, positions


def candidates(
    scores: torch.Tensor,
    maxima: torch.Tensor,
    length: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    *,
    ratio: int,
    count: int,
    topk: int,
) -> dict[str, torch.Tensor]:
    """What the candidate source publishes and what it selects itself, from one full scan (`index_scores`).

    The `topk` best positions lie in the `topk` best blocks: the maximum of a block that holds one is itself one of the best.
    So they are looked for in the published blocks, if those are more than `topk` (one of them is the newest), and no pass
    over all scores is made.

    Returns `blocks` [rows, count], `slots` and `positions` [rows, topk], all int32.
    """
    blocks = select_blocks(maxima, length, count=count, pin_newest=True)
    pool = blocks if count > topk else select_blocks(maxima, length, count=topk, pin_newest=False)
    slots, positions = select_positions(scores, pool, length, request, table, ratio=ratio, topk=topk, compact=False)
    return {"blocks": blocks, "slots": slots, "positions": positions}
