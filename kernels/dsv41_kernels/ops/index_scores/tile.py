# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""One tile of index scores: FP4 keys become a bfloat16 operand in registers, the tensor cores do the rest.

The keys are the left operand, `[keys, channels] x [channels, rows * heads]`: a tile of 64 keys fills the tensor core's 64 rows,
whereas 32 heads on the left would leave half of them empty; and the sum over the heads stays within four lanes.

Two byte pairs make a 32-bit register of eight nibbles. Nibble `j` of both halves lies 16 bits apart, which is how two bfloat16
lie in a register: one shift and one mask put two codes in place, no byte is moved. So the 128 channels are split by `channel % 4`
into four operands of 32 channels, and a tile is four products that accumulate.

A code's exponent and mantissa bits `eem` stand at bits 8..6 of a bfloat16, the lowest of its exponent and the highest of its
mantissa. Read that way they are 2^-126 times the value, subnormals included (E2M1's bias is 1, bfloat16's 127). The multiplier
restores the exponent together with the key's scale, but 2^-64 low: 2^(126 + byte - 127 - 64) is a bfloat16 for every byte a
writer produces, 2^(126 + byte - 127) is not. `WEIGHT_SCALE` puts the missing 2^64 into the head weights (and takes the 2 of `score_tile` out). All of it is exact for
scale bytes 66..192; the writer's smallest is 114 (`codec.quantise_fp4_index`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsv41_kernels import device

CHANNELS = tl.constexpr(128)
PAIRS = tl.constexpr(32)  # byte pairs of a key
KEY_BYTES = tl.constexpr(64)
SCALE_BYTES = tl.constexpr(4)
SLOTS = tl.constexpr(64)  # keys of an index page
PAGE_BYTES = tl.constexpr(64 * 68)
BLOCK = tl.constexpr(8)  # positions of a candidate block
WEIGHT_SCALE = tl.constexpr(2.0**63)

# Per nibble: mask it, multiply by two powers of two at once (one copy puts its exponent and mantissa in place, the other its
# sign), mask again. A shift by a byte brings the upper two nibbles to where the lower two are.
_SPLIT_PTX = tl.constexpr(
    """
    {
    .reg .b32 n, u;
    and.b32 n, $4, 0x000F000F;  mul.lo.u32 n, n, 0x1040;  and.b32 n, n, 0x81C081C0;  mul.rn.bf16x2 $0, n, $5;
    and.b32 n, $4, 0x00F000F0;  mul.lo.u32 n, n, 0x0104;  and.b32 n, n, 0x81C081C0;  mul.rn.bf16x2 $1, n, $5;
    shr.b32 u, $4, 8;
    and.b32 n, u, 0x000F000F;   mul.lo.u32 n, n, 0x1040;  and.b32 n, n, 0x81C081C0;  mul.rn.bf16x2 $2, n, $5;
    and.b32 n, u, 0x00F000F0;   mul.lo.u32 n, n, 0x0104;  and.b32 n, n, 0x81C081C0;  mul.rn.bf16x2 $3, n, $5;
    }
    """
)


@triton.jit
def _nibble(pairs, multiplier, J: tl.constexpr):
    """Nibble `J` of byte pairs times the multiplier, bfloat16: the portable twin of the PTX."""
    code = pairs.to(tl.int32) >> (4 * J)
    bits = ((code & 7) << 6) | ((code & 8) << 12)
    value = (bits << 16).to(tl.float32, bitcast=True)  # a bfloat16 is the upper half of a float32
    return (value * multiplier.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def load_pages(p_keys, page, T: tl.constexpr):
    """Byte pairs [T, 32] (int16) and the four scale bytes [T] (int32) of whole pages; `page` (int64) is a scalar or [T]."""
    slot = tl.arange(0, T) % SLOTS
    data = page * PAGE_BYTES + slot * KEY_BYTES
    scales = page * PAGE_BYTES + SLOTS * KEY_BYTES + slot * SCALE_BYTES
    data = tl.multiple_of(data, 64)
    scales = tl.multiple_of(scales, 4)
    pairs = tl.load(p_keys.to(tl.pointer_type(tl.int16)) + (data // 2)[:, None] + tl.arange(0, PAIRS)[None, :])
    scale = tl.load(p_keys.to(tl.pointer_type(tl.int32)) + scales // 4)
    return pairs, scale


@triton.jit
def load_keys(p_keys, slot, valid):
    """As `load_page`, for keys at arbitrary cache slots [T] (int32)."""
    o_page = (slot // SLOTS).to(tl.int64) * PAGE_BYTES
    data = tl.multiple_of(o_page + slot % SLOTS * KEY_BYTES, 64)
    scales = tl.multiple_of(o_page + SLOTS * KEY_BYTES + slot % SLOTS * SCALE_BYTES, 4)
    p_pairs = p_keys.to(tl.pointer_type(tl.int16)) + (data // 2)[:, None] + tl.arange(0, PAIRS)[None, :]
    pairs = tl.load(p_pairs, mask=valid[:, None], other=0)
    scale = tl.load(p_keys.to(tl.pointer_type(tl.int32)) + scales // 4, mask=valid, other=0)
    return pairs, scale


@triton.jit
def _multipliers(scale, T: tl.constexpr):
    """Four scale bytes [T] (int32) to the multiplier of each byte pair, bfloat16 [T, 32]."""
    b0, b1, b2, b3 = scale & 0xFF, (scale >> 8) & 0xFF, (scale >> 16) & 0xFF, (scale >> 24) & 0xFF
    byte = tl.reshape(tl.join(tl.join(b0, b2), tl.join(b1, b3)), (T, 4))
    bits = ((byte + 62) << 7).to(tl.int16)
    spread = tl.broadcast_to(bits[:, :, None], (T, 4, 8))
    return tl.reshape(spread, (T, PAIRS)).to(tl.bfloat16, bitcast=True)


@triton.jit
def expand(pairs, scale, T: tl.constexpr):
    """Keys of `load_keys` as the left operand, bfloat16 [T, 128], 2^-64 low; column 32 j + c is channel 4 c + j."""
    multiplier = _multipliers(scale, T)
    if not device.INTERPRETED:
        k0, k1, k2, k3 = tl.inline_asm_elementwise(
            _SPLIT_PTX,
            "=r,=r,=r,=r,r,r",
            [pairs, multiplier],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        k0, k1 = _nibble(pairs, multiplier, 0), _nibble(pairs, multiplier, 1)
        k2, k3 = _nibble(pairs, multiplier, 2), _nibble(pairs, multiplier, 3)
    joined = tl.join(tl.join(k0, k2), tl.join(k1, k3))  # [T, 32, 2, 2], j = 2 * axis 2 + axis 3
    return tl.reshape(tl.permute(joined, (0, 2, 3, 1)), (T, CHANNELS))


@triton.jit
def load_query(p_query, valid, N: tl.constexpr):
    """Queries of N = rows * heads as the right operand, bfloat16 [128, N], channels in the order of `expand`; `valid` [N]."""
    o = tl.arange(0, N)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    query = tl.load(p_query + o, mask=valid[:, None], other=0.0)
    return tl.reshape(tl.permute(tl.reshape(query, (N, PAIRS, 4)), (2, 1, 0)), (CHANNELS, N))


@triton.jit
def score_tile(keys, query, weight, T: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """Scores [T, ROWS] of T keys for ROWS query rows, float32: sum over heads of relu(q . k) * w; `weight` [ROWS * HEADS]."""
    products = device.dot(keys, query, tl.zeros((T, ROWS * HEADS), tl.float32))
    terms = (products + tl.abs(products)) * weight[
        None, :
    ]  # twice the positive part: an addition, where max is half rate
    return tl.sum(tl.reshape(terms, (T, ROWS, HEADS)), axis=2)
