# ruff: noqa: ANN201, PLR2004
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The codecs and cache addressing of `codec` and `layout` as functions for Triton kernels.

Arithmetic is chosen so that results equal the references bit for bit on finite inputs, under the interpreter as on a GPU:
encoders work on the bits, decoders use exact products. No Blackwell-only conversion is used.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

HEAD_DIM = tl.constexpr(512)
NOPE_DIM = tl.constexpr(448)

# Layout tags: `layout.LAYOUTS` names to the constants kernels branch on.
V4 = tl.constexpr(0)
V41 = tl.constexpr(1)
V41_FP4 = tl.constexpr(2)
TAGS = {"v4": 0, "v41": 1, "v41_fp4": 2}

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot(a, b, acc):
    """acc + a b for bfloat16 tiles and a float32 accumulator. The interpreter multiplies float32: it has no bfloat16."""
    if INTERPRETED:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def decode_e2m1(code):
    """Value of the low four bits of `code` (any integer tile), float16, exact.

    The three magnitude bits are the top of a float16 with a smaller exponent bias (1 against 15): shifted into place they
    read 2^-14 times the value, subnormals included.
    """
    code = code.to(tl.int32)
    bits = ((code & 8) << 12) | ((code & 7) << 9)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 16384.0


@triton.jit
def encode_e2m1(x):
    """E2M1 codes of float32 `x`, int32, ties to even, saturating, sign kept on zeros (`codec.encode_e2m1`)."""
    a = tl.abs(x)
    # A tie goes to the even code: from an even code upwards strictly, from an odd code inclusively.
    code = (a > 0.25).to(tl.int32) + (a >= 0.75).to(tl.int32) + (a > 1.25).to(tl.int32) + (a >= 1.75).to(tl.int32)
    code += (a > 2.5).to(tl.int32) + (a >= 3.5).to(tl.int32) + (a > 5.0).to(tl.int32)
    sign = (x.to(tl.int32, bitcast=True) >> 28) & 8
    return code | sign


@triton.jit
def round_e2m1(x):
    """Value of the nearest E2M1 number to float32 `x`, float32; same rounding as `encode_e2m1`."""
    return decode_e2m1(encode_e2m1(x)).to(tl.float32)


@triton.jit
def decode_e4m3(code):
    """Values of E4M3 codes (uint8 tile), float16, exact."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def encode_e4m3(x):
    """E4M3 codes of float32 `x`, int32, ties to even, saturating at 448, sign kept on zeros (`codec.encode_e4m3`)."""
    bits = x.to(tl.int32, bitcast=True)
    a = tl.minimum(tl.abs(x), 448.0)
    magnitude = a.to(tl.int32, bitcast=True)
    # Normal numbers: round the mantissa to three bits (a carry walks into the exponent), then rebias 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Subnormals are multiples of 2^-9, the spacing of float32 at 2^14: the addition rounds, the low bits are the code.
    subnormal = (a + 16384.0).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(a < 0.015625, subnormal, normal)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def ceil_exponent(x):
    """UE8M0 byte of the smallest power of two >= positive float32 `x`, int32 within 1..254 (`codec.encode_ue8m0`)."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, 1), 254)


@triton.jit
def power_of_two(byte):
    """2^(byte - 127) of UE8M0 bytes 1..254 (any integer tile), float32."""
    return (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_exactly(values, scale):
    """float16 `values` of at most eight significant bits times power-of-two float32 `scale`, in bfloat16 and exact."""
    if INTERPRETED:
        product = values.to(tl.float32) * scale
    else:
        product = values.to(tl.bfloat16) * scale.to(tl.bfloat16)
    return product


@triton.jit
def entry_offsets(
    index, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr, DATA_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr
):
    """Byte offsets (data, scales) of cache slots `index` in block-split pages of SLOTS entries; int64."""
    page = (index // SLOTS).to(tl.int64) * PAGE_BYTES
    slot = index % SLOTS
    return page + slot * DATA_BYTES, page + SLOTS * DATA_BYTES + slot * SCALE_BYTES


@triton.jit
def load_entries(
    cache, index, valid, LAYOUT: tl.constexpr, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr, T: tl.constexpr
):
    """Entries `index` [T] of a cache (pointer to uint8) as bfloat16 [T, 512], exact; rows that are not `valid` are zero."""
    channel = tl.arange(0, HEAD_DIM)[None, :]
    valid = valid[:, None]
    if LAYOUT == V41_FP4:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 256, 32)
        data = tl.multiple_of(data, 256)
        scales = tl.multiple_of(scales, 32)
        packed = tl.load(cache + data[:, None] + tl.arange(0, 256)[None, :], mask=valid, other=0)
        scale = decode_e4m3(tl.load(cache + scales[:, None] + tl.arange(0, 32)[None, :], mask=valid, other=0))
        # Values times scale have at most six significant bits and lie within 2^-10..2688: exact in float16 and bfloat16.
        values = tl.reshape(tl.join(decode_e2m1(packed), decode_e2m1(packed >> 4)), (T, 32, 16))
        entries = tl.reshape(values * scale[:, :, None], (T, HEAD_DIM)).to(tl.bfloat16)
    elif LAYOUT == V41:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 512, 16)
        data = tl.multiple_of(data, 512)
        scales = tl.multiple_of(scales, 16)
        code = tl.load(cache + data[:, None] + channel, mask=valid, other=0)
        scale = power_of_two(tl.load(cache + scales[:, None] + tl.arange(0, 16)[None, :], mask=valid, other=127))
        values = scale_exactly(tl.reshape(decode_e4m3(code), (T, 16, 32)), scale[:, :, None])
        entries = tl.reshape(values, (T, HEAD_DIM)).to(tl.bfloat16)
    else:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 576, 8)
        data = tl.multiple_of(data, 64)
        scales = tl.multiple_of(scales, 8)
        nope = channel < NOPE_DIM
        code = tl.load(cache + data[:, None] + channel, mask=valid & nope, other=0)
        group = tl.arange(0, 8)[None, :]
        scale = power_of_two(tl.load(cache + scales[:, None] + group, mask=valid & (group < 7), other=127))
        values = scale_exactly(tl.reshape(decode_e4m3(code), (T, 8, 64)), scale[:, :, None])
        # The rope channels are read as bfloat16 into the same columns: column 448 + i lies at byte 448 + 2 i.
        tail = (cache + data[:, None]).to(tl.pointer_type(tl.bfloat16)) + (channel - NOPE_DIM // 2)
        rope = tl.load(tail, mask=valid & (channel >= NOPE_DIM), other=0.0)
        entries = tl.where(nope, tl.reshape(values, (T, HEAD_DIM)).to(tl.bfloat16), rope)
    return entries


@triton.jit
def rotate_pairs(x, table_row, INVERSE: tl.constexpr, N: tl.constexpr):
    """Rotate float32 `x` [N] (interleaved complex numbers) by one row of the cos/sin table (pointer), float32 [N]."""
    real, imaginary = tl.split(tl.reshape(x, (N // 2, 2)))
    pair = tl.arange(0, N // 2)
    cos = tl.load(table_row + 2 * pair)
    sin = tl.load(table_row + 2 * pair + 1)
    if INVERSE:
        sin = -sin
    return tl.reshape(tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos), (N,))
