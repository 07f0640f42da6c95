# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN201, PLR2004, SIM108
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
    """Return acc + a b for bfloat16 tiles and a float32 accumulator. The interpreter multiplies float32: it has no bfloat16."""
    if INTERPRETED:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def to_bfloat16(x):
    """float32 `x` in bfloat16, ties to even. The interpreter's own conversion truncates."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


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
def encode_e2m1_quotient(x, scale):
    """E2M1 codes of x / scale without the division, int32, for float32 `x` of bfloat16 precision and E4M3 `scale` > 0.

    Compares |x| with each rounding boundary times the scale. The products are exact (three bits times four), and a quotient
    of eight by four significant bits is never within a float32 rounding of a boundary unless it lies on it: the codes are
    those of the IEEE quotient.
    """
    a = tl.abs(x)
    code = (a > 0.25 * scale).to(tl.int32) + (a >= 0.75 * scale).to(tl.int32) + (a > 1.25 * scale).to(tl.int32)
    code += (a >= 1.75 * scale).to(tl.int32) + (a > 2.5 * scale).to(tl.int32) + (a >= 3.5 * scale).to(tl.int32)
    code += (a > 5.0 * scale).to(tl.int32)
    return code | ((x.to(tl.int32, bitcast=True) >> 28) & 8)


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
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        a = tl.minimum(tl.abs(x), 448.0)
        magnitude = a.to(tl.int32, bitcast=True)
        # Normal numbers: round the mantissa to three bits (a carry walks into the exponent), then rebias 127 to 7.
        normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
        # Subnormals are multiples of 2^-9, the spacing of float32 at 2^14: the addition rounds, the low bits are the code.
        subnormal = (a + 16384.0).to(tl.int32, bitcast=True) & 0xF
        code = tl.where(a < 0.015625, subnormal, normal) | ((bits >> 24) & 0x80)
    else:
        code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
    return code


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


# Two E4M3 channels per 16-bit word, two words at a time: hardware conversion to float16, exact widening to bfloat16, one
# packed product. Triton's own conversion works element by element, and lets the layout pass dequantise a tile once for each of
# the two products that read it; an opaque instruction sequence (not `is_pure`) keeps it to once.
_E4M3_PAIRS = tl.constexpr("""{
.reg .b16 w<2>, h<4>;
.reg .b32 f<2>, b<2>;
.reg .f32 x<4>;
mov.b32 {w0, w1}, $2;
cvt.rn.f16x2.e4m3x2 f0, w0;
cvt.rn.f16x2.e4m3x2 f1, w1;
mov.b32 {h0, h1}, f0;
mov.b32 {h2, h3}, f1;
cvt.f32.f16 x0, h0;
cvt.f32.f16 x1, h1;
cvt.f32.f16 x2, h2;
cvt.f32.f16 x3, h3;
cvt.rn.bf16x2.f32 b0, x2, x0;
cvt.rn.bf16x2.f32 b1, x3, x1;
mul.rn.bf16x2 $0, b0, $3;
mul.rn.bf16x2 $1, b1, $3;
}""")

# Two E2M1 channels per byte, four bytes at a time: the three magnitude bits are the top of a bfloat16 with a smaller bias, so
# shifted into place they read 2^-126 times the value; two exact products put the bias and the scale right.
_E2M1_PAIRS = tl.constexpr("""{
.reg .b32 t<2>, m<4>, s<4>, bias;
prmt.b32 t0, $4, 0, 0x4140;
prmt.b32 t1, $4, 0, 0x4342;
shl.b32 m0, t0, 6;
shl.b32 m1, t1, 6;
shl.b32 m2, t0, 2;
shl.b32 m3, t1, 2;
shl.b32 s0, t0, 12;
shl.b32 s1, t1, 12;
shl.b32 s2, t0, 8;
shl.b32 s3, t1, 8;
and.b32 m0, m0, 0x01c001c0;
and.b32 m1, m1, 0x01c001c0;
and.b32 m2, m2, 0x01c001c0;
and.b32 m3, m3, 0x01c001c0;
lop3.b32 m0, s0, 0x80008000, m0, 0xea;
lop3.b32 m1, s1, 0x80008000, m1, 0xea;
lop3.b32 m2, s2, 0x80008000, m2, 0xea;
lop3.b32 m3, s3, 0x80008000, m3, 0xea;
mov.b32 bias, 0x7e807e80;
mul.rn.bf16x2 m0, m0, bias;
mul.rn.bf16x2 m1, m1, bias;
mul.rn.bf16x2 m2, m2, bias;
mul.rn.bf16x2 m3, m3, bias;
mul.rn.bf16x2 $0, m0, $5;
mul.rn.bf16x2 $1, m1, $6;
mul.rn.bf16x2 $2, m2, $5;
mul.rn.bf16x2 $3, m3, $6;
}""")


@triton.jit
def dequantise_e4m3_pairs(words, scale):
    """Even and odd channels of E4M3 pairs `words` (int16, even channel low) times float32 powers of two; bfloat16, exact."""
    if INTERPRETED:
        even = (decode_e4m3((words & 0xFF).to(tl.uint8)).to(tl.float32) * scale).to(tl.bfloat16)
        odd = (decode_e4m3(((words >> 8) & 0xFF).to(tl.uint8)).to(tl.float32) * scale).to(tl.bfloat16)
    else:
        even, odd = tl.inline_asm_elementwise(
            _E4M3_PAIRS, "=r,=r,r,r", [words, scale.to(tl.bfloat16)], (tl.bfloat16, tl.bfloat16), is_pure=False, pack=2
        )
    return even, odd


@triton.jit
def dequantise_e2m1_pairs(packed, scale):
    """Even and odd channels of E2M1 pairs `packed` (uint8, even channel low) times E4M3 values; bfloat16, exact.

    Code times scale has at most six significant bits and lies within 2^-10..2688.
    """
    if INTERPRETED:
        even = (decode_e2m1(packed).to(tl.float32) * scale).to(tl.bfloat16)
        odd = (decode_e2m1(packed >> 4).to(tl.float32) * scale).to(tl.bfloat16)
    else:
        even, odd = tl.inline_asm_elementwise(
            _E2M1_PAIRS,
            "=r,=r,=r,=r,r,r,r",
            [packed, scale.to(tl.bfloat16)],
            (tl.bfloat16, tl.bfloat16),
            is_pure=False,
            pack=4,
        )
    return even, odd


@triton.jit
def entry_offsets(
    index, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr, DATA_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr
):
    """Byte offsets (data, scales) of cache slots `index` in block-split pages of SLOTS entries; int64."""
    page = (index // SLOTS).to(tl.int64) * PAGE_BYTES
    slot = index % SLOTS
    return page + slot * DATA_BYTES, page + SLOTS * DATA_BYTES + slot * SCALE_BYTES


@triton.jit
def load_entries(cache, index, LAYOUT: tl.constexpr, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr, T: tl.constexpr):
    """Entries `index` [T] of a cache (pointer to uint8): even and odd channels, bfloat16 [T, 256] each, exact.

    Even and odd channels lie in the same byte or word, so they come apart without a shuffle, and a product over all channels
    is the sum of two. In the V4 layout the 64 rope channels (448..511) come out as zeros; `load_rope` reads them.
    """
    if LAYOUT == V41_FP4:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 256, 32)
        packed = tl.load(cache + data[:, None] + tl.arange(0, 256)[None, :])
        scale = decode_e4m3(tl.load(cache + scales[:, None] + tl.arange(0, 32)[None, :])).to(tl.float32)
        even, odd = dequantise_e2m1_pairs(tl.reshape(packed, (T, 32, 8)), scale[:, :, None])
    elif LAYOUT == V41:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 512, 16)
        words = tl.load((cache + data).to(tl.pointer_type(tl.int16))[:, None] + tl.arange(0, 256)[None, :])
        scale = power_of_two(tl.load(cache + scales[:, None] + tl.arange(0, 16)[None, :]))
        even, odd = dequantise_e4m3_pairs(tl.reshape(words, (T, 16, 16)), scale[:, :, None])
    else:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 576, 8)
        pair = tl.arange(0, 256)[None, :]
        row = (cache + data).to(tl.pointer_type(tl.int16))
        words = tl.load(row[:, None] + pair, mask=pair < NOPE_DIM // 2, other=0)
        group = tl.arange(0, 8)[None, :]
        scale = power_of_two(tl.load(cache + scales[:, None] + group, mask=group < NOPE_DIM // 64, other=127))
        even, odd = dequantise_e4m3_pairs(tl.reshape(words, (T, 8, 32)), scale[:, :, None])
    return tl.reshape(even, (T, 256)), tl.reshape(odd, (T, 256))


@triton.jit
def load_rope(cache, index, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr):
    """Rope channels 448..511 of V4 entries `index` [T]: bfloat16 [T, 64]."""
    data, _ = entry_offsets(index, SLOTS, PAGE_BYTES, 576, 8)
    row = (cache + data + NOPE_DIM).to(tl.pointer_type(tl.bfloat16))
    return tl.load(row[:, None] + tl.arange(0, 64)[None, :])


@triton.jit
def rotate_tail(x, p_angles, N: tl.constexpr, ROPE_DIM: tl.constexpr, INVERSE: tl.constexpr):
    """Rotate the last ROPE_DIM of N channels of float32 `x` [N] by one row of the cos/sin table (pointer); float32 [N]."""
    pair = tl.arange(0, N // 2) - (N - ROPE_DIM) // 2
    cos = tl.load(p_angles + 2 * pair, mask=pair >= 0, other=1.0)
    sin = tl.load(p_angles + 2 * pair + 1, mask=pair >= 0, other=0.0)
    if INVERSE:
        sin = -sin
    real, imaginary = tl.split(tl.reshape(x, (N // 2, 2)))
    return tl.reshape(tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos), (N,))


@triton.jit
def round_fp4_entry(x):
    """Round float32 `x` [512] of bfloat16 precision to what an FP4 entry holds (`codec.round_fp4_entry`); float32 [512]."""
    x = tl.reshape(x, (32, 16))
    scale = tl.max(tl.abs(x), axis=1) * 0.16666667163372040
    scale = tl.minimum(tl.maximum(scale, 0.001953125), 448.0)
    scale = decode_e4m3(encode_e4m3(scale).to(tl.uint8)).to(tl.float32)[:, None]
    return tl.reshape(decode_e2m1(encode_e2m1_quotient(x + 0.0, scale)).to(tl.float32) * scale, (HEAD_DIM,))


@triton.jit
def store_entry(cache, index, x, LAYOUT: tl.constexpr, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr):
    """Quantise float32 `x` [512] into cache slot `index` (int64 scalar), byte for byte as `layout.write` does.

    `x` has bfloat16 precision; the 8-bit layouts take values already rounded by `round_fp4_entry`.
    """
    channel = tl.arange(0, HEAD_DIM)
    if LAYOUT == V41_FP4:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 256, 32)
        x = tl.reshape(x, (32, 16))
        scale = tl.div_rn(tl.max(tl.abs(x), axis=1), tl.full((32,), 6.0, tl.float32))
        scale = encode_e4m3(tl.minimum(tl.maximum(scale, 0.001953125), 448.0))
        code = encode_e2m1_quotient(x, decode_e4m3(scale.to(tl.uint8)).to(tl.float32)[:, None])
        even, odd = tl.split(tl.reshape(code, (HEAD_DIM // 2, 2)))
        tl.store(cache + data + tl.arange(0, 256), (even | (odd << 4)).to(tl.uint8))
        tl.store(cache + scales + tl.arange(0, 32), scale.to(tl.uint8))
    elif LAYOUT == V41:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 512, 16)
        x = tl.reshape(x, (16, 32))
        amax = tl.max(tl.abs(x), axis=1)
        exponent = ceil_exponent(tl.maximum(tl.div_rn(amax, tl.full((16,), 448.0, tl.float32)), 1e-4))
        code = encode_e4m3(x * power_of_two(254 - exponent)[:, None])
        tl.store(cache + data + channel, tl.reshape(code, (HEAD_DIM,)).to(tl.uint8))
        tl.store(cache + scales + tl.arange(0, 16), exponent.to(tl.uint8))
    else:
        data, scales = entry_offsets(index, SLOTS, PAGE_BYTES, 576, 8)
        rope = (cache + data).to(tl.pointer_type(tl.bfloat16)) + (channel - NOPE_DIM // 2)
        tl.store(rope, to_bfloat16(x), mask=channel >= NOPE_DIM)
        x = tl.reshape(x, (8, 64))
        group = tl.arange(0, 8)
        amax = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-4)
        exponent = ceil_exponent(tl.div_rn(amax, tl.full((8,), 448.0, tl.float32)))
        code = tl.reshape(encode_e4m3(x * power_of_two(254 - exponent)[:, None]), (HEAD_DIM,))
        tl.store(cache + data + channel, code.to(tl.uint8), mask=channel < NOPE_DIM)
        tl.store(cache + scales + group, tl.where(group < NOPE_DIM // 64, exponent, 0).to(tl.uint8))
