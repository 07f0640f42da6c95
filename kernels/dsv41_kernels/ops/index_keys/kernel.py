# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN201, PLR2004
"""Index keys from latents, in one launch.

    latent [R, 512] bf16 --- W^T [512, 128] ---> [R, 128] fp32 -> bf16 -> RMSNorm -> bf16
       -> rotate channels 64..127 by the entry's position -> bf16 -> FP4 in two stages -> 64 B codes, 4 B scales

A row whose location is 0 (padding) or negative (no entry completed) writes nothing; its latent may be anything.
Source of the arithmetic: `DeepseekV41Indexer.index_keys` and the packing of fp4_indexer_rope.cuh in SGLang 0.5.23.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsv41_kernels import device
from dsv41_kernels.layout import HEAD_DIM, INDEX_DIM, INDEX_KEY
from dsv41_kernels.op import Outputs, UnsupportedProblemError

FEW_ROWS = 256
"""Up to here a launch is bound by latency: small tiles spread over more multiprocessors."""


# What differs from batch to batch makes no variant: compiling one takes over a second while a request waits.
@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["p_positions", "p_location"])
def index_keys_kernel(
    p_latent,  # [rows, 512] bf16, or [rows, 128] already projected
    p_weight,  # [128, 512] bf16
    p_norm,  # [128] bf16
    p_positions,  # [rows]
    p_location,  # [rows] index slot; <= 0 writes nothing
    p_table,  # [positions, 64] fp32
    p_cache,  # uint8 pages
    rows,
    eps,
    RATIO: tl.constexpr,
    SLOTS: tl.constexpr,
    PROJECT: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
):
    """A tile of R rows."""
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    location = tl.load(p_location + o_row, mask=o_row < rows, other=0).to(tl.int64)
    stored = location > 0
    position = tl.load(p_positions + o_row, mask=stored, other=0).to(tl.int64)
    position -= position % RATIO  # a pair stands at its even position
    o_key = tl.arange(0, 128)
    if PROJECT:
        acc = tl.zeros((R, 128), tl.float32)
        for start in tl.range(0, 512, K):
            o_k = start + tl.arange(0, K)
            latent = tl.load(p_latent + o_row[:, None] * 512 + o_k[None, :], mask=stored[:, None], other=0.0)
            weight = tl.load(p_weight + o_key[None, :] * 512 + o_k[:, None])
            acc = device.dot(latent, weight, acc)
        key = device.to_bfloat16(acc).to(tl.float32)
    else:
        key = tl.load(p_latent + o_row[:, None] * 128 + o_key[None, :], mask=stored[:, None], other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(key * key, axis=1) * (1.0 / 128) + eps)
    key = device.to_bfloat16(tl.load(p_norm + o_key).to(tl.float32)[None, :] * (key * inverse[:, None])).to(tl.float32)

    pair = tl.arange(0, 64)[None, :] - 32
    p_angle = p_table + position[:, None] * 64 + 2 * pair
    turns = stored[:, None] & (pair >= 0)
    cos = tl.load(p_angle, mask=turns, other=1.0)
    sin = tl.load(p_angle + 1, mask=turns, other=0.0)
    real, imaginary = tl.split(tl.reshape(key, (R, 64, 2)))
    key = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos)
    key = device.to_bfloat16(tl.reshape(key, (R, 128))).to(tl.float32)

    # Stage one rounds to FP4 with the model's floor, stage two packs with the cache's: `codec.quantise_fp4_index`.
    key = tl.reshape(key, (R, 4, 32))
    exponent = device.ceil_exponent(tl.maximum(tl.max(tl.abs(key), axis=2), 7.0526e-38) * 0.16666667163372040)
    key = device.round_e2m1(key * device.power_of_two(254 - exponent)[:, :, None] + 0.0)
    key = key * device.power_of_two(exponent)[:, :, None]
    sixth = tl.div_rn(tl.max(tl.abs(key), axis=2), tl.full((R, 4), 6.0, tl.float32))
    exponent = device.ceil_exponent(tl.maximum(sixth, 1e-4))
    code = device.encode_e2m1(key * device.power_of_two(254 - exponent)[:, :, None])
    code = tl.where(code == 8, 0, code)
    even, odd = tl.split(tl.reshape(code, (R, 64, 2)))
    data, scales = device.entry_offsets(location, SLOTS, SLOTS * 68, 64, 4)
    tl.store(
        p_cache + data[:, None] + tl.arange(0, 64)[None, :], (even | (odd << 4)).to(tl.uint8), mask=stored[:, None]
    )
    tl.store(p_cache + scales[:, None] + tl.arange(0, 4)[None, :], exponent.to(tl.uint8), mask=stored[:, None])


def index_keys(
    *,
    latent: torch.Tensor,
    weight: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    location: torch.Tensor,
    table: torch.Tensor,
    cache: torch.Tensor,
    ratio: int,
    slots: int,
) -> Outputs:
    """Project latents to index keys and store them.

    Args:
        latent: [rows, 512] bfloat16 before rotation, contiguous; [rows, 128] already projected when `weight` is None.
        weight: [128, 512] bfloat16, the indexer's `wk`, or None.
        norm_weight: [128] bfloat16.
        eps: of the RMSNorm.
        positions: [rows] integer token positions; the entry of a pair stands at the even one.
        location: [rows] integer index slots, 0 for padding, negative for rows that complete no entry.
        table: [positions, 64] float32 cos/sin.
        cache: uint8 [pages, slots * 68], updated in place.
        ratio: 1 or 2.
        slots: keys per page, a power of two.

    Returns:
        `cache`.

    Raises:
        UnsupportedProblemError: a shape or type the kernel does not serve.
    """
    rows, dim = latent.shape
    wanted = INDEX_DIM if weight is None else HEAD_DIM
    if dim != wanted or latent.dtype != torch.bfloat16 or not latent.is_contiguous():
        raise UnsupportedProblemError(
            f"latent must be contiguous bfloat16 [rows, {wanted}], not {latent.dtype} {tuple(latent.shape)}"
        )
    if weight is not None and (weight.shape != (INDEX_DIM, HEAD_DIM) or weight.dtype != torch.bfloat16):
        raise UnsupportedProblemError(f"weight must be bfloat16 [128, 512], not {weight.dtype} {tuple(weight.shape)}")
    if weight is not None and not weight.is_contiguous():
        raise UnsupportedProblemError("weight must be contiguous")
    if cache.shape[1] != INDEX_KEY.page_bytes(slots):
        raise UnsupportedProblemError(
            f"a page of {slots} keys has {INDEX_KEY.page_bytes(slots)} bytes, not {cache.shape[1]}"
        )
    if rows == 0:
        return {"cache": cache}
    tile, depth = (16, 256) if rows <= FEW_ROWS else (64, 128)
    index_keys_kernel[(triton.cdiv(rows, tile),)](
        latent,
        latent if weight is None else weight,
        norm_weight,
        positions,
        location,
        table,
        cache,
        rows,
        eps,
        RATIO=ratio,
        SLOTS=slots,
        PROJECT=weight is not None,
        R=tile,
        K=depth,
        num_warps=4,
        num_stages=2,
        enable_fp_fusion=False,
    )
    return {"cache": cache}
