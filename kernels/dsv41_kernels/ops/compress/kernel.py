# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN201, PLR2004, SIM102
"""Compressors C1 and C2 in one launch.

    row t of the batch                         ring of its request (ratio 2), fp32 kv | score
    kv[t] (and score[t])                       slot p % ring holds the last even position written there
       |                                          |
       |   odd position p: partner p - 1 = row t - 1 if that is the same request's, else the ring
       v                                          v
    pooled = softmax over the pair, per channel     even position: park kv | score in the ring, done
       |  bfloat16
    latent = RMSNorm(pooled)  -> p_latent (the index key is projected from it, before the rotation)
       |  rotate the tail by position p - 1, bfloat16
    FP4 rounding, entry -> cache slot location // 2

Ratio 1 has no pooling and no ring: every row is an entry, rotated by its own position, in slot `location`. `location` 0 marks a
padded row of a captured graph: it writes nothing.

Decode and verify rows park themselves: a verify block is shorter than the ring, so the slot that its first row reads is not
among those its rows write. An extend chunk may be longer than the ring; there one program per request reads the first row's
partner and afterwards parks the last rows, so that every read of the old ring precedes every write.

Source of the arithmetic: `DeepseekV41Compressor` and `_low_ratio_pair_partners` in SGLang 0.5.23.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsv41_kernels import device
from dsv41_kernels.layout import HEAD_DIM, LAYOUTS, ROPE_DIM, V4, V41, V41_FP4
from dsv41_kernels.op import Outputs, UnsupportedProblemError

MANY_ROWS = 1024
"""From here on a launch is bound by instructions, not latency: fewer warps per row repeat less of what every warp does."""


# What differs from batch to batch makes no variant: compiling one takes over a second while a request waits.
@triton.jit(
    do_not_specialize=["requests"],
    do_not_specialize_on_alignment=["p_positions", "p_request", "p_location", "p_start", "p_length"],
)
def compress_kernel(
    p_kv,  # [rows, 512] bf16 (ratio 1) or fp32 (ratio 2), row stride kv_stride
    p_score,  # [rows, 512] fp32, row stride kv_stride
    p_ring,  # [slots, 1024] fp32, kv | score
    p_norm,  # [512] bf16
    p_positions,  # [rows]
    p_request,  # [rows]
    p_location,  # [rows] token slot, 0 = padding
    p_start,  # [requests] int32, first row of each request (extend)
    p_length,  # [requests] int32
    p_table,  # [positions, 64] fp32 cos/sin
    p_latent,  # [rows, 512] bf16
    p_cache,  # uint8 pages
    kv_stride,
    requests,
    eps,
    RATIO: tl.constexpr,
    EXTEND: tl.constexpr,
    RING: tl.constexpr,
    LAYOUT: tl.constexpr,
    SLOTS: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
):
    """One row; with EXTEND the first `requests` programs take each request's first row and its ring."""
    program = tl.program_id(0)
    o = tl.arange(0, device.HEAD_DIM)
    leads = False
    row = program
    count = 0
    if EXTEND:
        leads = program < requests
        if leads:
            count = tl.load(p_length + program)
            if count == 0:
                return
            row = tl.load(p_start + program)
        else:
            row = program - requests
    location = tl.load(p_location + row).to(tl.int64)
    position = tl.load(p_positions + row).to(tl.int64)
    entry_position = position
    completes = location != 0
    if RATIO == 2:
        odd = position % 2 == 1
        if EXTEND:
            # Half the rows of a chunk complete nothing and park nothing: they leave before they read.
            if (program >= requests) & (not odd):
                return
    x = tl.load(p_kv + row.to(tl.int64) * kv_stride + o).to(tl.float32)
    if RATIO == 2:
        completes = completes & odd
        request = tl.load(p_request + row).to(tl.int64)
        before = tl.maximum(row - 1, 0)
        chained = (row > 0) & (tl.load(p_request + before).to(tl.int64) == request)
        chained = chained & (tl.load(p_positions + before).to(tl.int64) == position - 1)
        chained = chained & (tl.load(p_location + before).to(tl.int64) != 0)
        if EXTEND:
            # A request's first row belongs to the request's own program.
            if (program >= requests) & (not chained):
                return
        score = tl.load(p_score + row.to(tl.int64) * kv_stride + o)
        p_slot = p_ring + (request * RING + (position + RING - 1) % RING) * 1024
        from_row = completes & chained
        from_ring = completes & (not chained)
        o_before = before.to(tl.int64) * kv_stride + o
        partner = tl.load(p_kv + o_before, mask=from_row, other=0.0) + tl.load(p_slot + o, mask=from_ring, other=0.0)
        partner_score = tl.load(p_score + o_before, mask=from_row, other=0.0)
        partner_score += tl.load(p_slot + 512 + o, mask=from_ring, other=0.0)
        if EXTEND:
            if leads:
                tl.debug_barrier()
                for i in range(RING):
                    source = row + count - 1 - i
                    safe = tl.maximum(source, row)
                    parked = (i < count) & (tl.load(p_location + safe).to(tl.int64) != 0)
                    at = tl.load(p_positions + safe).to(tl.int64)
                    parked = parked & (at % 2 == 0)
                    p_park = p_ring + (request * RING + at % RING) * 1024
                    o_source = safe.to(tl.int64) * kv_stride + o
                    tl.store(p_park + o, tl.load(p_kv + o_source, mask=parked, other=0.0), mask=parked)
                    tl.store(p_park + 512 + o, tl.load(p_score + o_source, mask=parked, other=0.0), mask=parked)
        else:
            p_park = p_ring + (request * RING + position % RING) * 1024
            parked = (location != 0) & (position % 2 == 0)
            tl.store(p_park + o, x, mask=parked)
            tl.store(p_park + 512 + o, score, mask=parked)
        # Two scores: the softmax is one exponential of a non-positive number.
        difference = partner_score - score
        smaller = tl.exp(-tl.abs(difference))
        x = partner * tl.where(difference > 0, 1.0, smaller) + x * tl.where(difference > 0, smaller, 1.0)
        x = device.to_bfloat16(tl.div_rn(x, 1.0 + smaller)).to(tl.float32)
        entry_position = position - 1
    if not completes:
        return
    inverse = tl.rsqrt(tl.sum(x * x, axis=0) * (1.0 / 512) + eps)
    latent = device.to_bfloat16(x * inverse * tl.load(p_norm + o).to(tl.float32))
    tl.store(p_latent + row.to(tl.int64) * 512 + o, latent)
    x = device.rotate_tail(latent.to(tl.float32), p_table + entry_position * 64, 512, 64, INVERSE=False)
    x = device.to_bfloat16(x).to(tl.float32)
    if LAYOUT != device.V41_FP4:
        x = device.round_fp4_entry(x)
    device.store_entry(p_cache, location // RATIO, x, LAYOUT, SLOTS, PAGE_BYTES)


def warps(rows: int) -> int:
    """Warps of a program in a launch of so many rows."""
    return 4 if rows < MANY_ROWS else 2


def compress(
    *,
    kv: torch.Tensor,
    score: torch.Tensor | None,
    ring: torch.Tensor | None,
    ring_size: int,
    norm_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    request: torch.Tensor,
    location: torch.Tensor,
    start: torch.Tensor | None,
    length: torch.Tensor | None,
    table: torch.Tensor,
    cache: torch.Tensor,
    layout: str,
    slots: int,
) -> Outputs:
    """Compress the rows of a batch into cache entries.

    Args:
        kv: [rows, 512]; ratio 1 bfloat16, ratio 2 float32. Rows may be strided (a half of the fused projection).
        score: [rows, 512] float32 with kv's row stride for ratio 2, None for ratio 1.
        ring: [requests x ring_size, 1024] float32 kv | score, updated in place; None for ratio 1.
        ring_size: slots per request, a power of two larger than a verify block.
        norm_weight: [512] bfloat16.
        eps: of the RMSNorm.
        positions: [rows] integer token positions.
        request: [rows] integer ring owner of each row.
        location: [rows] integer token slot, 0 for padding; the entry's slot is location // ratio.
        start: [requests] int32 first rows for an extend batch, None for decode and verify rows.
        length: [requests] int32 row counts, with `start`.
        table: [positions, 64] float32 cos/sin.
        cache: uint8 pages of `slots` entries in `layout`, updated in place.
        layout: "v4", "v41" or "v41_fp4".
        slots: entries per page, a power of two.

    Returns:
        `latent` [rows, 512] bfloat16 before rotation, written where a row completes an entry; `cache`; `ring` (ratio 2).

    Raises:
        UnsupportedProblemError: a shape, type or layout the kernel does not serve.
    """
    rows, dim = kv.shape
    ratio = 1 if score is None else 2
    wanted = torch.bfloat16 if ratio == 1 else torch.float32
    if dim != HEAD_DIM or kv.dtype != wanted or kv.stride(1) != 1:
        raise UnsupportedProblemError(
            f"kv must be {wanted} [rows, 512] for ratio {ratio}, not {kv.dtype} {tuple(kv.shape)}"
        )
    if (score is None) != (ring is None) or (score is not None and score.stride() != kv.stride()):
        raise UnsupportedProblemError("ratio 2 needs a ring, and score with the strides of kv")
    if LAYOUTS.get(layout) not in (V4, V41, V41_FP4):
        raise UnsupportedProblemError(f"layout {layout} is not v4, v41 or v41_fp4")
    if table.shape[1] != ROPE_DIM or table.dtype != torch.float32:
        raise UnsupportedProblemError(f"table must be float32 [positions, 64], not {table.dtype} {tuple(table.shape)}")
    latent = torch.empty((rows, HEAD_DIM), dtype=torch.bfloat16, device=kv.device)
    outputs = {"latent": latent, "cache": cache} | ({} if ring is None else {"ring": ring})
    if rows == 0:
        return outputs
    extend = ratio == 2 and start is not None
    requests = 0 if start is None or not extend else start.shape[0]
    absent = positions
    compress_kernel[(rows + requests,)](
        kv,
        kv if score is None else score,
        kv if ring is None else ring,
        norm_weight,
        positions,
        request,
        location,
        absent if start is None else start,
        absent if length is None else length,
        table,
        latent,
        cache,
        kv.stride(0),
        requests,
        eps,
        RATIO=ratio,
        EXTEND=extend,
        RING=ring_size,
        LAYOUT=device.TAGS[layout],
        SLOTS=slots,
        PAGE_BYTES=LAYOUTS[layout].page_bytes(slots),
        num_warps=warps(rows),
        # The rotation's products are rounded one by one in the engine; a fused multiply-add would flip bfloat16 ties.
        enable_fp_fusion=False,
    )
    return outputs
