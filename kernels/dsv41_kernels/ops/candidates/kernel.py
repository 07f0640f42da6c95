# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Selection after a full scan: the best blocks of 8 positions, and the best positions within blocks."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.candidates import select

BLOCK = 8
"""Positions of a candidate block (fixed by the model: candidate_block_size)."""
_CHUNK = 16384
"""Scores that one program holds in registers."""
_LEAST_CHUNK = 4096
"""Shorter rows are padded to this: a search of few scores is launch and latency, and every length of its own would be compiled for."""
_MAX_CHUNKS = 8
"""Chunks of block maxima of one row: 8 * 16384 blocks are 1,048,576 positions."""
_MAX_ROWS = 65536
# Measured on H200. A search is bound by its chain of counts, so few warps with many scores each do best, as long as nothing spills.
BLOCK_WARPS = 8
MERGE_WARPS = 16
POSITION_WARPS = 4
_COUNTS = (128, 256, 512, 1024, 2048)
_TOPKS = (16, 32, 64, *_COUNTS)


# Slices of a batch begin anywhere, and how many parts a row has follows from the context: neither may make a variant.
@triton.jit(do_not_specialize=["parts"], do_not_specialize_on_alignment=["p_length"])
def select_blocks_kernel(
    p_maximum,
    p_length,
    p_part,
    p_part_maximum,
    p_ticket,
    p_block,
    maximum_stride,
    parts,  # chunks of a row
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,  # at most so many
    PIN: tl.constexpr,
):
    """Programs (chunk, row): the K best blocks of a chunk; the row's last program selects among those of all chunks.

    With PIN the newest block stands outside: the K - 1 best of the others are selected, and it closes the list.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    p_row = p_maximum + row * maximum_stride
    p_kept = p_block + row * K
    o_kept = tl.arange(0, K)
    blocks = tl.cdiv(tl.load(p_length + row), 8)
    SELECTED: tl.constexpr = K - 1 if PIN else K
    others = blocks - 1 if PIN else blocks
    chunks = tl.cdiv(others, CHUNK)
    last = tl.minimum(SELECTED, others - (chunks - 1) * CHUNK)  # what the last chunk can give
    if blocks <= K:
        if chunk == 0:
            tl.store(p_kept + o_kept, tl.where(o_kept < blocks, o_kept, -1))
    elif chunk < chunks:
        block = chunk * CHUNK + select.places(CHUNK // select.COLUMNS)
        best = tl.load(p_row + block, mask=block < others, other=float("nan"))
        rank = select.rank_largest(best, tl.minimum(others - chunk * CHUNK, CHUNK), SELECTED)
        if CHUNKS == 1 or chunks == 1:
            tl.store(p_kept + rank, block, mask=rank >= 0)
            if PIN:
                tl.store(p_kept + SELECTED, blocks - 1)
        else:
            o_list = (row * parts + chunk) * K
            count = tl.where(chunk == chunks - 1, last, SELECTED)
            tl.store(p_part + o_list + rank, block, mask=rank >= 0)
            best = tl.load(p_row + block, mask=rank >= 0)  # again: kept during the search it would spill
            tl.store(p_part_maximum + o_list + rank, best, mask=rank >= 0)
            tl.store(p_part_maximum + o_list + o_kept, float("nan"), mask=o_kept >= count)
            tl.debug_barrier()
            if tl.atomic_add(p_ticket + row, 1, sem="acq_rel") == chunks - 1:
                tl.store(p_ticket + row, 0)
                p_best = p_part_maximum + row * parts * K
                o_part = select.places(CHUNKS * K // select.COLUMNS)
                m_part = o_part < chunks * K
                best_of = tl.load(p_best + o_part, mask=m_part, other=float("nan"), cache_modifier=".cg")
                place = select.rank_largest(best_of, (chunks - 1) * SELECTED + last, SELECTED)
                # Columns go out at their rank and come back for the gather: it then runs on K values, not on all.
                tl.store(p_kept + place, o_part, mask=place >= 0)
                tl.debug_barrier()
                column = tl.load(p_kept + o_kept, mask=o_kept < SELECTED, other=0)
                tl.debug_barrier()
                kept = tl.load(p_part + row * parts * K + column, cache_modifier=".cg")
                tl.store(p_kept + o_kept, kept, mask=o_kept < SELECTED)
                if PIN:
                    tl.store(p_kept + SELECTED, blocks - 1)


@triton.jit(do_not_specialize_on_alignment=["p_length", "p_request"])  # slices of a batch begin anywhere
def select_positions_kernel(
    p_score,
    p_maximum,
    p_block,
    p_length,
    p_request,
    p_table,
    p_slot,
    p_position,
    score_stride,
    maximum_stride,
    table_stride,
    slot_stride,
    position_stride,
    BLOCKS: tl.constexpr,
    TOPK: tl.constexpr,
    RATIO: tl.constexpr,
    COMPACT: tl.constexpr,
):
    """Program (row): the TOPK best positions of the row's blocks, as cache slots and as positions.

    First the TOPK blocks with the largest maxima, then the best positions within them: whatever is selected lies there.
    """
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(p_length + row)
    p_tokens = p_table + tl.load(p_request + row).to(tl.int64) * table_stride
    p_blocks = p_block + row * BLOCKS
    p_chosen = p_position + row * position_stride
    o_chosen = tl.arange(0, TOPK)
    # Chosen columns go out at their rank and come back: what follows then runs on TOPK values, not on all.
    if BLOCKS > TOPK:
        o_block = select.places(BLOCKS // select.COLUMNS)
        listed = tl.load(p_blocks + o_block)
        column = o_block if COMPACT else listed
        best = tl.load(p_maximum + row * maximum_stride + column, mask=listed >= 0, other=float("nan"))
        available = tl.sum((listed >= 0).to(tl.int32))
        rank = select.rank_largest(best, available, TOPK)
        tl.store(p_chosen + rank, o_block, mask=rank >= 0)
        tl.store(p_chosen + o_chosen, -1, mask=o_chosen >= available)
        tl.debug_barrier()
    o = select.places(min(BLOCKS, TOPK) * 8 // select.COLUMNS)
    chosen = tl.load(p_chosen + o // 8) if BLOCKS > TOPK else o // 8
    block = tl.load(p_blocks + chosen, mask=chosen >= 0, other=-1)
    position = block * 8 + o % 8
    column = chosen * 8 + o % 8 if COMPACT else position
    valid = (block >= 0) & (position < length)
    score = tl.load(p_score + row * score_stride + column, mask=valid, other=float("nan"))
    available = tl.sum(valid.to(tl.int32))
    rank = select.rank_largest(score, available, TOPK)
    tl.debug_barrier()
    tl.store(p_chosen + rank, position, mask=rank >= 0)
    tl.debug_barrier()
    m_chosen = o_chosen < available
    position = tl.load(p_chosen + o_chosen, mask=m_chosen, other=0)
    tl.debug_barrier()
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


def select_blocks(maxima: torch.Tensor, length: torch.Tensor, *, count: int, pin_newest: bool) -> torch.Tensor:
    """The `count` blocks with the largest maximum of each row, ascending, -1 padded: int32 [rows, count].

    Args:
        maxima: block maxima, float32 [rows, blocks]; what lies beyond ceil(length / 8) is not read.
        length: visible positions of each row, int32 [rows].
        count: blocks to keep, a power of two from 128 to 2048; a row with no more blocks keeps them all.
        pin_newest: always keep the newest, possibly partial block.

    Of equal maxima the lower block is kept.
    """
    rows, width = maxima.shape
    chunk = min(_CHUNK, max(_LEAST_CHUNK, triton.next_power_of_2(max(width, count))))
    chunks = triton.cdiv(max(width, 1), chunk)
    _refuse(
        "select_blocks",
        (count not in _COUNTS, f"count {count} is not one of {_COUNTS}"),
        (maxima.dtype != torch.float32 or maxima.stride(1) != 1, "maxima is not float32 with contiguous rows"),
        (length.dtype != torch.int32 or not length.is_contiguous(), "length is not contiguous int32"),
        (chunks > _MAX_CHUNKS, f"{width} blocks exceed {_CHUNK * _MAX_CHUNKS}"),
        (rows > _MAX_ROWS, f"{rows} rows exceed {_MAX_ROWS}"),
    )
    kept = torch.empty(rows, count, dtype=torch.int32, device=maxima.device)
    if rows:
        parts = torch.empty(rows if chunks > 1 else 0, chunks, count, dtype=torch.int32, device=maxima.device)
        part_maxima = torch.empty_like(parts, dtype=torch.float32)
        select_blocks_kernel[(chunks, rows)](
            maxima,
            length,
            parts,
            part_maxima,
            _tickets(maxima.device),
            kept,
            maxima.stride(0),
            chunks,
            K=count,
            CHUNK=chunk,
            CHUNKS=1 if chunks == 1 else _MAX_CHUNKS,
            PIN=pin_newest,
            num_warps=BLOCK_WARPS if chunks == 1 else MERGE_WARPS,
        )
    return kept


def select_positions(
    scores: torch.Tensor,
    maxima: torch.Tensor,
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

    Both are ascending by position, valid ones first. Of equal scores the lower position is selected. Scores must be numbers.

    Args:
        scores: float32 [rows, n]: of every position, or with `compact` of the listed blocks only, column 8 i + j for
            position j of block i.
        maxima: the maximum of each block, float32 [rows, n / 8], columns as those of `scores`.
        blocks: int32 [rows, blocks], ascending, -1 padded; a power of two from 128 to 2048.
        length: visible positions of each row, int32 [rows].
        request: row of `table` of each query row, integer [rows].
        table: token slot of each position of each request, int32 [requests, positions].
        ratio: tokens per compressed position, 1 or 2.
        topk: positions to select, a power of two from 16 to 2048.
        compact: which form `scores` has.
        slots: output to write into, int32 [rows, at least topk]; allocated if None.
        positions: likewise.
    """
    rows, count = blocks.shape
    _refuse(
        "select_positions",
        (count not in _COUNTS, f"{count} blocks are not one of {_COUNTS}"),
        (topk not in _TOPKS, f"topk {topk} is not one of {_TOPKS}"),
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
            maxima,
            blocks,
            length,
            request,
            table,
            slots,
            positions,
            scores.stride(0),
            maxima.stride(0),
            table.stride(0),
            slots.stride(0),
            positions.stride(0),
            BLOCKS=count,
            TOPK=topk,
            RATIO=ratio,
            COMPACT=compact,
            num_warps=POSITION_WARPS,
        )
    return slots, positions


def top_positions(
    scores: torch.Tensor,
    maxima: torch.Tensor,
    length: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    *,
    ratio: int,
    topk: int,
    slots: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `topk` best of all visible positions: slots and positions as `select_positions` returns them.

    The best positions lie in the `topk` best blocks: the maximum of a block that holds one is itself one of the best. So the
    maxima are searched, then `topk` blocks, and no pass over all scores is made.
    """
    pool = select_blocks(maxima, length, count=topk, pin_newest=False)
    return select_positions(
        scores,
        maxima,
        pool,
        length,
        request,
        table,
        ratio=ratio,
        topk=topk,
        compact=False,
        slots=slots,
        positions=positions,
    )


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
    slots: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """What the candidate source publishes and what it selects itself, from one full scan (`index_scores`).

    Its own positions are looked for in the published blocks, as in `top_positions`, if those are more than `topk` (one of them
    is the newest and need not be among the best). With `count` 0 nothing is published: a layer that selects for itself alone.

    Args:
        scores: of every position, float32 [rows, n], as `index_scores` returns them.
        maxima: of every block of 8, float32 [rows, ceil(n / 8)], likewise.
        length: visible positions of each row, int32 [rows].
        request: row of `table` of each query row, integer [rows].
        table: token slot of each position of each request, int32 [requests, positions].
        ratio: tokens per compressed position, 1 or 2.
        count: blocks to publish, 0 or as in `select_blocks`.
        topk: positions to select, as in `select_positions`; from 128 on unless `count` exceeds it.
        slots: output to write into, int32 [rows, at least topk]; allocated if None.
        positions: likewise.

    Returns:
        `blocks` [rows, count], `slots` and `positions` [rows, topk], all int32, ascending by position, -1 padded.

    Raises:
        UnsupportedProblemError: shapes or types that the kernels do not serve.
    """
    if count == 0:
        blocks = torch.empty(len(length), 0, dtype=torch.int32, device=scores.device)
    else:
        blocks = select_blocks(maxima, length, count=count, pin_newest=True)
    if count > topk:
        slots, positions = select_positions(
            scores,
            maxima,
            blocks,
            length,
            request,
            table,
            ratio=ratio,
            topk=topk,
            compact=False,
            slots=slots,
            positions=positions,
        )
    else:
        slots, positions = top_positions(
            scores, maxima, length, request, table, ratio=ratio, topk=topk, slots=slots, positions=positions
        )
    return {"blocks": blocks, "slots": slots, "positions": positions}
