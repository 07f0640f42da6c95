# ruff: noqa: ANN201, PLR2004
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Index scores of a full scan: kernel and launcher."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from dsv41_kernels import layout
from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.index_scores import tile

if TYPE_CHECKING:
    from collections.abc import Sequence


@triton.jit
def _load_rows(p_query, p_weight, p_length, row, count, FIRST: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """Right operand, head weights and visible lengths of rows FIRST.. of a group; rows beyond `count` see nothing."""
    o_column = tl.arange(0, ROWS * HEADS)
    o_row = tl.arange(0, ROWS)
    m_column = o_column < (count - FIRST) * HEADS
    base = (row + FIRST).to(tl.int64) * HEADS
    query = tile.load_query(p_query + base * tile.CHANNELS, m_column, ROWS * HEADS)
    weight = tl.load(p_weight + base + o_column, mask=m_column, other=0.0).to(tl.float32) * tile.WEIGHT_SCALE
    length = tl.load(p_length + row + FIRST + o_row, mask=o_row < count - FIRST, other=0)
    return query, weight, length


@triton.jit
def _score_rows(
    keys,
    query,
    weight,
    length,
    position,
    p_score,
    p_maximum,
    score_stride,
    maximum_stride,
    row,
    index,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    T: tl.constexpr,
):
    """Score tile `index` for ROWS rows; write what each row sees, and the maximum of each block of 8."""
    o_row = (row + FIRST + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    score = tile.score_tile(keys, query, weight, T, ROWS, HEADS)
    visible = position[:, None] < length[None, :]
    tl.store(p_score + o_row * score_stride + position[:, None], score, mask=visible)
    score = tl.where(visible, score, float("-inf"))
    best = tl.max(tl.reshape(score, (T // tile.BLOCK, tile.BLOCK, ROWS)), axis=1)
    o_block = index * (T // tile.BLOCK) + tl.arange(0, T // tile.BLOCK)[:, None]
    tl.store(p_maximum + o_row * maximum_stride + o_block, best, mask=o_block * tile.BLOCK < length[None, :])


# What differs from chunk to chunk must not make a variant: each costs over a second of compilation while a prompt waits.
@triton.jit(
    do_not_specialize=["groups", "table_stride"],
    do_not_specialize_on_alignment=["p_request", "p_table", "p_length", "p_start"],
)
def index_scores_kernel(
    p_query,
    p_weight,
    p_request,
    p_table,
    p_length,
    p_start,
    p_keys,
    p_score,
    p_maximum,
    groups,
    table_stride,
    score_stride,
    maximum_stride,
    GROUP_ROWS: tl.constexpr,
    ROWS_A: tl.constexpr,
    ROWS_B: tl.constexpr,
    ROWS_MAX: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    RATIO: tl.constexpr,
    RAGGED: tl.constexpr,
    T: tl.constexpr,
):
    """Every program takes an equal share of the visible tiles of all groups of rows."""
    o_group = tl.arange(0, GROUPS)
    if RAGGED:
        first = tl.load(p_start + o_group, mask=o_group < groups, other=0)
        count = tl.load(p_start + o_group + 1, mask=o_group < groups, other=0) - first
    else:
        first = o_group * GROUP_ROWS
        count = tl.where(o_group < groups, GROUP_ROWS, 0)
    o_row = tl.arange(0, ROWS_MAX)[None, :]
    lengths = tl.load(p_length + first[:, None] + o_row, mask=o_row < count[:, None], other=0)
    longest = tl.max(lengths, axis=1)  # [GROUPS]
    tiles = tl.cdiv(longest, T)
    ends = tl.cumsum(tiles, axis=0)
    total = tl.sum(tiles, axis=0).to(tl.int64)
    begin = (total * tl.program_id(0) // tl.num_programs(0)).to(tl.int32)
    end = (total * (tl.program_id(0) + 1) // tl.num_programs(0)).to(tl.int32)

    while begin < end:
        group = tl.sum((ends <= begin).to(tl.int32), axis=0)
        mine = o_group == group
        row = tl.sum(tl.where(mine, first, 0), axis=0)
        rows = tl.sum(tl.where(mine, count, 0), axis=0)
        seen = tl.sum(tl.where(mine, longest, 0), axis=0)
        last = tl.sum(tl.where(mine, ends, 0), axis=0)
        stop = tl.minimum(last, end)
        skipped = last - tl.cdiv(seen, T)

        query_a, weight_a, length_a = _load_rows(p_query, p_weight, p_length, row, rows, 0, ROWS_A, HEADS)
        if ROWS_B > 0:
            query_b, weight_b, length_b = _load_rows(p_query, p_weight, p_length, row, rows, ROWS_A, ROWS_B, HEADS)
        p_slots = p_table + tl.load(p_request + row).to(tl.int64) * table_stride

        # A tile is one page or two: positions are consecutive in a page, so its first position tells the page. The pages of
        # the next tile are looked up a tile ahead, so that the loads of keys never wait for the table.
        end_page = tl.cdiv(seen, tile.SLOTS)
        p_next = p_slots + (begin - skipped) * (T * RATIO)
        token = tl.load(p_next)
        if T > tile.SLOTS:
            token_b = tl.load(p_next + tile.SLOTS * RATIO, mask=(begin - skipped) * 2 + 1 < end_page, other=0)
        for index in range(begin - skipped, stop - skipped):
            page = (token // (tile.SLOTS * RATIO)).to(tl.int64)
            following = (index + 1) * (T // tile.SLOTS)
            p_next = p_slots + following * (tile.SLOTS * RATIO)
            token = tl.load(p_next, mask=following < end_page, other=0)
            if T > tile.SLOTS:
                page_b = (token_b // (tile.SLOTS * RATIO)).to(tl.int64)
                page = tl.where(tl.arange(0, T) < tile.SLOTS, page, page_b)
                token_b = tl.load(p_next + tile.SLOTS * RATIO, mask=following + 1 < end_page, other=0)
            pairs, scale = tile.load_pages(p_keys, page, T)
            position = index * T + tl.arange(0, T)
            keys = tile.expand(pairs, scale, T)
            _score_rows(
                keys, query_a, weight_a, length_a, position, p_score, p_maximum, score_stride, maximum_stride,
                row, index, 0, ROWS_A, HEADS, T,
            )  # fmt: skip
            if ROWS_B > 0:
                _score_rows(
                    keys, query_b, weight_b, length_b, position, p_score, p_maximum, score_stride, maximum_stride,
                    row, index, ROWS_A, ROWS_B, HEADS, T,
                )  # fmt: skip
        begin = stop


@dataclasses.dataclass(frozen=True)
class Config:
    """How rows share a tile: two parts of powers of two, one product each, and how many programs an SM holds."""

    parts: tuple[int, int]
    tile: int
    warps: int
    stages: int
    programs: int


# Rows of a group -> configuration, measured on H200. Two pages a tile pay in decode, where the fixed work of a tile counts; with
# more rows the accumulators leave no registers for it, and products of 128 columns overlap better than one of 256.
CONFIGS = {
    1: Config((1, 0), 128, 4, 3, 3),
    2: Config((2, 0), 64, 4, 3, 3),
    4: Config((4, 0), 64, 4, 3, 2),
    6: Config((4, 2), 64, 4, 3, 2),
    8: Config((4, 4), 64, 4, 3, 2),
}
RAGGED_GROUPS = (16, 128)
"""Ragged groups of one launch: every program keeps their lengths in registers. More are served by more launches of the last."""
_WIDTH = 128
"""Rows of scores and of block maxima both stay a multiple of 16 elements long, whatever the context is."""
MAX_GROUPS = 1024
"""Groups of one launch when they are all of the same size."""


def split_rows(rows_per_request: Sequence[int], group_rows: int, device: torch.device | str) -> torch.Tensor:
    """First row of each group for requests with that many consecutive rows: int32 [groups + 1], the last is the row count.

    A group is up to `group_rows` rows of one request. Made on the host from numbers the host has; no synchronisation.
    """
    starts: list[int] = []
    row = 0
    for rows in rows_per_request:
        starts.extend(range(row, row + rows, group_rows))
        row += rows
    return torch.tensor([*starts, row], dtype=torch.int32).to(device, non_blocking=True)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for the interpreter on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def index_scores(
    query: torch.Tensor,
    weight: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    length: torch.Tensor,
    keys: torch.Tensor,
    *,
    ratio: int,
    max_length: int,
    group_rows: int = 1,
    starts: torch.Tensor | None = None,
    config: Config | None = None,
) -> dict[str, torch.Tensor]:
    """Scores of every visible compressed position, and the maximum of each block of 8.

    Args:
        query: rounded index queries, bfloat16 [rows, heads, 128].
        weight: head weights with the softmax scale folded in, bfloat16 or float32 [rows, heads].
        request: row of `table` of each query row, integer [rows].
        table: token slot of each position of each request, int32 [requests, positions]; 64 consecutive compressed positions
            from a multiple of 64 lie in one index page (the engine allocates pages of 256 tokens).
        length: visible compressed positions of each row, int32 [rows].
        keys: index keys, uint8 [pages, 64 * 68] (`layout.INDEX_KEY`).
        ratio: tokens per compressed position, 1 or 2.
        max_length: capacity of the output; no length may exceed it.
        group_rows: consecutive rows that belong to one request (1 in decode, 6 in verify); keys are read once per group.
        starts: first row of each group, int32 [groups + 1], where groups are ragged (prefill, `split_rows`); each has at most
            `group_rows` rows, all of one request.
        config: replaces the configuration from the table.

    Returns:
        `scores` float32 [rows, max_length] and `maxima` float32 [rows, ceil(max_length / 8)]; what lies beyond a row's length
        is not written. The last block of a row is the maximum of the positions it has.

    Raises:
        UnsupportedProblemError: shapes or types that the kernel does not serve.
    """
    rows, heads, channels = query.shape
    groups = rows // group_rows if starts is None else len(starts) - 1
    wrong = [
        text
        for bad, text in (
            (channels != layout.INDEX_DIM or query.dtype != torch.bfloat16, "query is not bfloat16 [rows, heads, 128]"),
            (heads & (heads - 1) or heads < 8, f"{heads} heads are not a power of two of at least 8"),
            (
                keys.dtype != torch.uint8 or keys.shape[1:] != (tile.PAGE_BYTES.value,),
                "keys is not uint8 [pages, 4352]",
            ),
            (not all(t.is_contiguous() for t in (query, weight, keys)), "query, weight and keys must be contiguous"),
            (table.dtype != torch.int32 or table.stride(1) != 1, "table is not int32 with contiguous rows"),
            (length.dtype != torch.int32 or not length.is_contiguous(), "length is not contiguous int32"),
            (
                ratio not in (1, 2) or max_length * ratio > table.shape[1],
                f"table is too narrow for {max_length} positions",
            ),
            (group_rows not in CONFIGS, f"group_rows {group_rows} is not one of {sorted(CONFIGS)}"),
            (starts is None and rows % group_rows, f"{rows} rows are no multiple of group_rows {group_rows}"),
            (starts is None and groups > MAX_GROUPS, f"{groups} groups exceed {MAX_GROUPS}"),
        )
        if bad
    ]
    if wrong:
        raise UnsupportedProblemError(f"index_scores: {'; '.join(wrong)}")
    width = -(-max_length // _WIDTH) * _WIDTH
    scores = torch.empty(rows, width, dtype=torch.float32, device=query.device)
    maxima = torch.empty(rows, width // tile.BLOCK.value, dtype=torch.float32, device=query.device)
    config = config or CONFIGS[group_rows]
    most = groups if starts is None else next((n for n in RAGGED_GROUPS if n >= groups), RAGGED_GROUPS[-1])
    for first in range(0, groups if max_length else 0, max(most, 1)):
        index_scores_kernel[(multiprocessors(query.device) * config.programs,)](
            query,
            weight,
            request,
            table,
            length,
            starts[first:] if starts is not None else length,
            keys,
            scores,
            maxima,
            min(most, groups - first),
            table.stride(0),
            width,
            maxima.stride(0),
            GROUP_ROWS=group_rows,
            ROWS_A=config.parts[0],
            ROWS_B=config.parts[1],
            ROWS_MAX=triton.next_power_of_2(group_rows),
            GROUPS=triton.next_power_of_2(most),
            HEADS=heads,
            RATIO=ratio,
            RAGGED=starts is not None,
            T=config.tile,
            num_warps=config.warps,
            num_stages=config.stages,
        )
    return {"scores": scores[:, :max_length], "maxima": maxima[:, : triton.cdiv(max_length, tile.BLOCK.value)]}
