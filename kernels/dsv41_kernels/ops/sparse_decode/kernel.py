# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN201
"""Sparse MLA decode: split over the entries, combined with the sink and the inverse rotation.

    program (row, head block, split) of `attend_kernel`          program (row, head) of `combine_kernel`

    entries of the row, in tiles of T                            max over splits and the sink
    | window 0..127          | selected 0..511        |          sum of exp-weighted partial sums
    |  split 0  |  split 1   |  split 2  |  split 3   |   ==>    divide, rotate the last 64 channels back
      each: K = V tile [T, 512] bf16 (exact),                    out [512] bf16
      s = q K^T, online softmax, acc += p V,
      partial acc [H, 512], max, sum

The layouts enter in one place (`device.load_entries`): every layout's entry is an exact bfloat16 row, so the tensor-core
products see what a float32 reference would see. K and V are the same tile, read once.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
import triton
import triton.language as tl

from dsv41_kernels import device
from dsv41_kernels.layout import HEAD_DIM, LAYOUTS, V4, V41, V41_FP4
from dsv41_kernels.op import Outputs, UnsupportedProblemError

MAX_ROWS = 65_535
HEAD_BLOCK = 16
"""Query heads per program: one tensor-core tile. More would not fit: 16 heads of 512 channels take 128 registers a thread."""
WIDE_WARPS = 8
"""Warps of a program with the double tile."""
LAYOUT_PAIRS = ((V4, V4), (V41, V41), (V41, V41_FP4))
"""(window, selection) layouts that occur together in the engine."""


@triton.jit
def _attend_tile(
    q_even,  # [H, 256] even channels
    q_odd,  # [H, 256] odd channels
    q_rope,  # [H, 64] channels 448..511
    acc_even,
    acc_odd,
    acc_rope,
    m,
    total,
    p_cache,
    p_index,
    length,
    start,
    scale,
    LAYOUT: tl.constexpr,
    SLOTS: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    T: tl.constexpr,
):
    """Fold entries start..start + T of one index row into the accumulators, the maxima m [H] and the masses total [H]."""
    o = start + tl.arange(0, T)
    index = tl.load(p_index + o, mask=o < length, other=-1)
    valid = index >= 0
    # An invalid place reads the tile's largest index again instead of unknown bytes; its logit is masked below.
    safe = tl.max(index, axis=0)
    if safe >= 0:
        index = tl.where(valid, index, safe)
        even, odd = device.load_entries(p_cache, index, LAYOUT, SLOTS, PAGE_BYTES, T)
        none = tl.zeros((q_even.shape[0], T), tl.float32)
        # Two sums, each scaled before they are added: one chain over 512 channels would leave the tensor cores waiting, and
        # without the scaling the compiler would make it one chain.
        s = device.dot(q_even, tl.trans(even), none) * scale
        s_odd = device.dot(q_odd, tl.trans(odd), none)
        if LAYOUT == device.V4:
            rope = device.load_rope(p_cache, index, SLOTS, PAGE_BYTES)
            s_odd = device.dot(q_rope, tl.trans(rope), s_odd)
        s = tl.where(valid[None, :], s + s_odd * scale, -float("inf"))
        # Some entry of the tile is valid, so the maximum is finite.
        m_new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        m = m_new
        total = total * shrink + tl.sum(p, axis=1)
        p = device.to_bfloat16(p)
        acc_even = device.dot(p, even, acc_even * shrink[:, None])
        acc_odd = device.dot(p, odd, acc_odd * shrink[:, None])
        if LAYOUT == device.V4:
            acc_rope = device.dot(p, rope, acc_rope * shrink[:, None])
    return acc_even, acc_odd, acc_rope, m, total


@triton.jit
def attend_kernel(
    p_q,  # [rows, heads, 512] bf16, row stride q_stride
    p_window,  # uint8 pages
    p_window_index,  # [rows, window_width] int32
    p_window_length,  # [rows] int32
    p_selected,
    p_selected_index,
    p_selected_length,
    p_acc,  # [rows, splits, heads, 512] fp32
    p_max,  # [rows, splits, heads] fp32, base 2
    p_sum,  # [rows, splits, heads] fp32
    q_stride,
    heads,
    window_width,
    selected_width,
    tiles_per_split,
    scale,  # softmax scale times log2(e)
    WINDOW_LAYOUT: tl.constexpr,
    WINDOW_SLOTS: tl.constexpr,
    WINDOW_PAGE_BYTES: tl.constexpr,
    SELECTED_LAYOUT: tl.constexpr,
    SELECTED_SLOTS: tl.constexpr,
    SELECTED_PAGE_BYTES: tl.constexpr,
    H: tl.constexpr,
    T: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Partial attention of one row, head block and split. Tiles count through the window first, then the selection."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    o_head = tl.program_id(1) * H + tl.arange(0, H)
    m_head = o_head[:, None] < heads
    window_length = tl.minimum(tl.load(p_window_length + row), window_width)
    selected_length = tl.minimum(tl.load(p_selected_length + row), selected_width)
    o_channel = tl.arange(0, device.HEAD_DIM)[None, :]
    o_rope = tl.arange(0, 64)[None, :] + device.NOPE_DIM
    p_row = p_q + row * q_stride + o_head[:, None] * device.HEAD_DIM
    q_even, q_odd = tl.split(tl.reshape(tl.load(p_row + o_channel, mask=m_head, other=0.0), (H, 256, 2)))
    q_rope = tl.load(p_row + o_rope, mask=m_head, other=0.0)
    acc_even = tl.zeros((H, 256), tl.float32)
    acc_odd = tl.zeros((H, 256), tl.float32)
    acc_rope = tl.zeros((H, 64), tl.float32)
    m = tl.full((H,), -float("inf"), tl.float32)
    total = tl.zeros((H,), tl.float32)

    window_tiles = tl.cdiv(window_width, T)
    first = split * tiles_per_split
    last = first + tiles_per_split
    # Loops end at the row's actual lengths: a short context costs its own work, not the width of the index rows.
    for tile in tl.range(first, tl.minimum(last, tl.cdiv(window_length, T))):
        acc_even, acc_odd, acc_rope, m, total = _attend_tile(
            q_even, q_odd, q_rope, acc_even, acc_odd, acc_rope, m, total, p_window, p_window_index + row * window_width, window_length,
            tile * T, scale, WINDOW_LAYOUT, WINDOW_SLOTS, WINDOW_PAGE_BYTES, T,
        )  # fmt: skip
    begin = tl.maximum(first - window_tiles, 0)
    end = tl.minimum(last - window_tiles, tl.cdiv(selected_length, T))
    for tile in tl.range(begin, end):
        acc_even, acc_odd, acc_rope, m, total = _attend_tile(
            q_even, q_odd, q_rope, acc_even, acc_odd, acc_rope, m, total, p_selected, p_selected_index + row * selected_width,
            selected_length, tile * T, scale, SELECTED_LAYOUT, SELECTED_SLOTS, SELECTED_PAGE_BYTES, T,
        )  # fmt: skip

    o_partial = (row * splits + split) * heads + o_head
    tl.store(p_max + o_partial, m, mask=o_head < heads)
    tl.store(p_sum + o_partial, total, mask=o_head < heads)
    p_partial = p_acc + o_partial[:, None] * device.HEAD_DIM
    acc = tl.reshape(tl.join(acc_even, acc_odd), (H, device.HEAD_DIM))
    if WINDOW_LAYOUT == device.V4:
        tl.store(p_partial + o_channel, acc, mask=m_head & (o_channel < device.NOPE_DIM))
        tl.store(p_partial + o_rope, acc_rope, mask=m_head)
    else:
        tl.store(p_partial + o_channel, acc, mask=m_head)


@triton.jit
def combine_kernel(
    p_acc,
    p_max,
    p_sum,
    p_sink,  # [heads] fp32, natural base
    p_table,  # [positions, 64] fp32 cos/sin
    p_positions,  # [rows]
    p_out,  # [rows, heads, 512] bf16, row stride out_stride
    out_stride,
    heads,
    splits,
    SPLITS: tl.constexpr,  # splits rounded up to a power of two
    INVERSE_ROPE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Merge the splits of one row and head, add the sink to the denominator, rotate the tail back.

    With OVERLAP (programmatic dependent launch, compute capability 9.0 and newer) the programs are already in place when the
    last split finishes; they wait for it here.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    o_split = tl.arange(0, SPLITS)
    m_split = o_split < splits
    o_partial = (row * splits + o_split) * heads + head
    mass = tl.load(p_sum + o_partial, mask=m_split, other=0.0)
    m = tl.load(p_max + o_partial, mask=m_split, other=-float("inf"))
    sink = tl.load(p_sink + head) * 1.4426950408889634
    top = tl.maximum(tl.max(m, axis=0), sink)
    # A sink of +inf takes all the weight; with a sink of -inf and no entries the output is zero.
    base = tl.where((top == float("inf")) | (top == -float("inf")), 0.0, top)
    weight = tl.where(mass > 0, tl.exp2(m - base), 0.0)
    total = tl.sum(weight * mass, axis=0) + tl.exp2(sink - base)
    weight = tl.where((total > 0) & (total < float("inf")), weight / tl.where(total > 0, total, 1.0), 0.0)

    o_channel = tl.arange(0, device.HEAD_DIM)
    o_acc = o_partial[:, None] * device.HEAD_DIM + o_channel[None, :]
    # Splits without entries may hold anything in acc: their weight is zero, but 0 * inf would not be.
    acc = tl.load(p_acc + o_acc, mask=(m_split & (mass > 0))[:, None], other=0.0)
    out = tl.sum(acc * weight[:, None], axis=0)
    if INVERSE_ROPE:
        position = tl.load(p_positions + row).to(tl.int64)
        out = device.rotate_tail(out, p_table + position * 64, 512, 64, INVERSE=True)
    tl.store(p_out + row * out_stride + head * device.HEAD_DIM + o_channel, device.to_bfloat16(out))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a launch is cut: entries per tile, splits per row, warps per program."""

    tile: int
    splits: int
    warps: int


@functools.cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def plan(rows: int, heads: int, width: int, processors: int) -> Plan:
    """Choose the cut of a launch from shapes alone, so that a captured graph stays valid for every content.

    `width` is the sum of both index widths. Measured on H200: with room for all entries of all rows at one tile per program,
    the smallest tile wins (the launch is bound by latency); with one program per multiprocessor the double tile; beyond that
    about two programs per multiprocessor in as few rounds as possible.
    """
    blocks = rows * -(-heads // HEAD_BLOCK)
    for tile, warps in ((32, 4), (64, WIDE_WARPS)):
        tiles = -(-width // tile)
        if blocks * tiles <= processors:
            return Plan(tile, tiles, warps)
    tile, tiles = 32, -(-width // 32)
    splits = max(1, min(tiles, 2 * processors // blocks))
    return Plan(tile, -(-tiles // -(-tiles // splits)), 4)  # equal shares: drop splits that would get no tile


def sparse_decode(
    *,
    q: torch.Tensor,
    window_cache: torch.Tensor,
    window_index: torch.Tensor,
    window_length: torch.Tensor,
    window_layout: str,
    window_slots: int,
    selected_cache: torch.Tensor | None,
    selected_index: torch.Tensor | None,
    selected_length: torch.Tensor | None,
    selected_layout: str,
    selected_slots: int,
    sink: torch.Tensor,
    scale: float,
    table: torch.Tensor | None,
    positions: torch.Tensor | None,
    out: torch.Tensor | None = None,
    cut: Plan | None = None,
) -> Outputs:
    """Attend from each row to its window and its selected entries.

    Args:
        q: [rows, heads, 512] bfloat16, heads 1..128; rows may be strided (the first heads of a padded query).
        window_cache: uint8 pages of `window_slots` entries in `window_layout` ("v4" or "v41").
        window_index: [rows, width] int32 cache slots, -1 for none.
        window_length: [rows] int32; entries from this column on are ignored.
        window_layout: layout name.
        window_slots: slots per page, a power of two.
        selected_cache: as window_cache ("v4", "v41" or "v41_fp4"), None for layers with the window only.
        selected_index: as window_index.
        selected_length: as window_length.
        selected_layout: layout name.
        selected_slots: slots per page.
        sink: [heads] float32, a logit without a value; -inf for none.
        scale: softmax scale.
        table: [positions, 64] float32 cos/sin to rotate the output's last 64 channels back, None to leave them.
        positions: [rows] integer query positions, with `table`.
        out: where to write, shaped like q, rows may be strided; None allocates.
        cut: overrides `plan`.

    Returns:
        `out` [rows, heads, 512] bfloat16. A row without entries and sink gives zeros.

    Raises:
        UnsupportedProblemError: a shape, type or layout the kernel does not serve.
    """
    rows, heads, dim = q.shape
    if q.dtype != torch.bfloat16 or dim != HEAD_DIM or q.stride()[1:] != (HEAD_DIM, 1):
        raise UnsupportedProblemError(
            f"q must be bfloat16 [rows, heads, 512] with dense heads, not {q.dtype} {tuple(q.shape)}"
        )
    if rows > MAX_ROWS:
        raise UnsupportedProblemError(
            f"{rows} rows exceed {MAX_ROWS}: decode and verify only, prefill has its own kernel"
        )
    if (LAYOUTS.get(window_layout), LAYOUTS.get(selected_layout)) not in LAYOUT_PAIRS:
        raise UnsupportedProblemError(
            f"window {window_layout} with selection {selected_layout}; served are v4+v4, v41+v41 and v41+v41_fp4"
        )
    if (selected_cache is None) != (selected_index is None) or (selected_cache is None) != (selected_length is None):
        raise UnsupportedProblemError("selected_cache, selected_index and selected_length come together")
    if (table is None) != (positions is None):
        raise UnsupportedProblemError("table and positions come together")
    if out is None:
        out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    if out.shape != q.shape or out.dtype != q.dtype or out.stride()[1:] != (HEAD_DIM, 1):
        raise UnsupportedProblemError(f"out must be shaped like q with dense heads, not {out.dtype} {tuple(out.shape)}")
    if rows == 0:
        return {"out": out}
    if selected_cache is None or selected_index is None or selected_length is None:
        # The window stands in for the absent selection, with a width of zero.
        selected_cache, selected_index, selected_length = window_cache, window_index[:, :0], window_length
        selected_layout, selected_slots = window_layout, window_slots
    window_width, selected_width = window_index.shape[1], selected_index.shape[1]
    if cut is None:
        processors = _processors(q.device.index) if q.is_cuda else 1
        cut = plan(rows, heads, window_width + selected_width, processors)
    tiles = triton.cdiv(window_width, cut.tile) + triton.cdiv(selected_width, cut.tile)
    partial = (rows, cut.splits, heads)
    # Worth it while the grid leaves multiprocessors free for the waiting programs.
    overlap = q.is_cuda and rows * triton.cdiv(heads, HEAD_BLOCK) * cut.splits <= _processors(q.device.index)
    acc = torch.empty((*partial, HEAD_DIM), dtype=torch.float32, device=q.device)
    maximum = torch.empty(partial, dtype=torch.float32, device=q.device)
    total = torch.empty(partial, dtype=torch.float32, device=q.device)
    attend_kernel[(rows, triton.cdiv(heads, HEAD_BLOCK), cut.splits)](
        q,
        window_cache,
        window_index,
        window_length,
        selected_cache,
        selected_index,
        selected_length,
        acc,
        maximum,
        total,
        q.stride(0),
        heads,
        window_width,
        selected_width,
        triton.cdiv(tiles, cut.splits),
        scale * math.log2(math.e),
        WINDOW_LAYOUT=device.TAGS[window_layout],
        WINDOW_SLOTS=window_slots,
        WINDOW_PAGE_BYTES=LAYOUTS[window_layout].page_bytes(window_slots),
        SELECTED_LAYOUT=device.TAGS[selected_layout],
        SELECTED_SLOTS=selected_slots,
        SELECTED_PAGE_BYTES=LAYOUTS[selected_layout].page_bytes(selected_slots),
        H=HEAD_BLOCK,
        T=cut.tile,
        OVERLAP=overlap,
        num_warps=cut.warps,
        num_stages=1,
    )
    combine_kernel[(rows, heads)](
        acc,
        maximum,
        total,
        sink,
        table if table is not None else sink,
        positions if positions is not None else window_length,
        out,
        out.stride(0),
        heads,
        cut.splits,
        SPLITS=triton.next_power_of_2(cut.splits),
        INVERSE_ROPE=table is not None,
        OVERLAP=overlap,
        num_warps=4,
        **({"launch_pdl": True} if overlap else {}),
    )
    return {"out": out}
