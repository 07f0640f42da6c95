"""Number formats of the KV cache in plain torch: E2M1, E4M3 and UE8M0, and the group scales built on them.

These are the references of the project. They are written from the formats' definitions (a table of values, nearest
neighbour, ties to the even code), not from any kernel, and run on every torch device.

    format  bits          values                                          special codes
    E2M1    s ee m        0 0.5 1 1.5 2 3 4 6, signed                     none
    E4M3    s eeee mmm    2^-9 .. 448, subnormals below 2^-6, signed      0x7f and 0xff are NaN, no infinity
    UE8M0   eeeeeeee      2^(b - 127)                                     0xff is NaN

What is decided where the formats leave a choice:

- Rounding is to nearest, ties to the even code; E2M1 and E4M3 saturate, also for infinities (`satfinite` in PTX).
- NaN becomes code 0 in E2M1 (the format has none), 0x7f in E4M3, 0xff in UE8M0. Kernels require finite inputs.
- The sign of a value that rounds to zero is kept (E2M1 code 8, E4M3 0x80), as the hardware conversion does.
- Subnormals are real values: E4M3 goes down to 2^-9 and half of that rounds to zero.
- A UE8M0 scale rounds *up*, so that the scaled values never exceed the target's maximum, and stays within 1..254.
"""

from __future__ import annotations

import torch

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN = 2.0**-9
"""Smallest positive E4M3 value (a subnormal), the floor of an FP4 entry's scales."""

_UE8M0_NAN = 255
_E2M1_NEGATIVE_ZERO = 8
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E4M3_MAGNITUDES = tuple(
    (m / 8) * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)
)[:127]

FP4_ENTRY_GROUP = 16
"""Channels that share one E4M3 scale in an FP4 entry."""
INDEX_GROUP = 32
"""Channels that share one UE8M0 scale in an index key or query."""
_INDEX_FLOOR_ROUND = 6 * 2.0**-126
_INDEX_FLOOR_PACK = 1e-4


def _nearest_code(x: torch.Tensor, magnitudes: tuple[float, ...]) -> torch.Tensor:
    """Index of the nearest magnitude to |x|, ties to the even index, saturating. int64, NaN gives 0."""
    grid = torch.tensor(magnitudes, dtype=torch.float64, device=x.device)
    middles = (grid[1:] + grid[:-1]) / 2
    a = torch.nan_to_num(x.double().abs(), nan=0.0, posinf=magnitudes[-1])
    below = torch.searchsorted(middles, a, right=False)  # number of middles < a
    upto = torch.searchsorted(middles, a, right=True)  # number of middles <= a; differs on a tie only
    return torch.where(below == upto, below, torch.where(below % 2 == 0, below, upto))


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Round `x` to E2M1; uint8 codes 0..15 of the same shape. The sign is kept on zeros; NaN gives 0."""
    code = _nearest_code(x, _E2M1_MAGNITUDES)
    sign = (torch.signbit(x) & ~torch.isnan(x)).long()
    return (code | sign << 3).to(torch.uint8)


def decode_e2m1(code: torch.Tensor) -> torch.Tensor:
    """Values of E2M1 codes (uint8, low four bits), float32."""
    values = torch.tensor(
        _E2M1_MAGNITUDES + tuple(-m for m in _E2M1_MAGNITUDES), dtype=torch.float32, device=code.device
    )
    return values[(code & 15).long()]


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Round `x` to E4M3 (the `fn` variant); uint8 codes of the same shape. Saturates at 448, NaN gives 0x7f."""
    code = _nearest_code(x, _E4M3_MAGNITUDES)
    code = code | torch.signbit(x).long() << 7
    return torch.where(torch.isnan(x), 0x7F, code).to(torch.uint8)


def decode_e4m3(code: torch.Tensor) -> torch.Tensor:
    """Values of E4M3 codes (uint8), float32; 0x7f and 0xff give NaN."""
    positive = (*_E4M3_MAGNITUDES, float("nan"))
    values = torch.tensor(positive + tuple(-v for v in positive), dtype=torch.float32, device=code.device)
    return values[code.long()]


def encode_ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """Smallest power of two >= `scale` (positive) as its UE8M0 byte, kept within 1..254; NaN and infinity give 255."""
    mantissa, exponent = torch.frexp(scale.double())  # scale = mantissa * 2^exponent, mantissa in [0.5, 1)
    ceiling = exponent - (2 * mantissa == 1).int()
    byte = (ceiling + 127).clamp(1, 254)
    return torch.where(torch.isfinite(scale), byte, _UE8M0_NAN).to(torch.uint8)


def decode_ue8m0(byte: torch.Tensor) -> torch.Tensor:
    """2^(byte - 127), float32 (byte 0 is the subnormal 2^-127); 255 gives NaN."""
    value = torch.ldexp(torch.ones_like(byte, dtype=torch.float64), byte.int() - 127)
    return torch.where(byte == _UE8M0_NAN, torch.nan, value).float()


def pack_nibbles(code: torch.Tensor) -> torch.Tensor:
    """Pack codes [..., n] (uint8, 0..15) to bytes [..., n / 2], the even channel in the low nibble."""
    return code[..., 0::2] | code[..., 1::2] << 4


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of `pack_nibbles`: bytes [..., n] to codes [..., 2 n]."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def group_amax(x: torch.Tensor, group: int) -> torch.Tensor:
    """Largest magnitude of each group of `group` channels, [..., n] to [..., n / group], float32."""
    return x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group).abs().amax(dim=-1)


def spread(scale: torch.Tensor, group: int) -> torch.Tensor:
    """Repeat each group's scale over its channels, [..., n / group] to [..., n]."""
    return scale.repeat_interleave(group, dim=-1)


def round_fp4_entry(x: torch.Tensor) -> torch.Tensor:
    """Round [..., n] to what an FP4 entry can hold and return the values, float32.

    One E4M3 scale per 16 channels, `s = e4m3(clamp(amax * (1/6), 2^-9, 448))` with the float32 reciprocal, then E2M1 of
    the IEEE quotient x / s. Source: SGLang's `fake_quant_compressed_kv`, which every compressed entry passes before it is
    stored in an 8-bit layout. An input of -0.0 comes out as +0.0.
    """
    sixth = torch.tensor(1 / E2M1_MAX, dtype=torch.float32, device=x.device)
    scale = decode_e4m3(encode_e4m3((group_amax(x, FP4_ENTRY_GROUP) * sixth).clamp(E4M3_MIN, E4M3_MAX)))
    scale = spread(scale, FP4_ENTRY_GROUP)
    return decode_e2m1(encode_e2m1(x.float() / scale + 0.0)) * scale


def quantise_fp4_entry(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 codes [..., n] and E4M3 scale bytes [..., n / 16] of an FP4 entry.

    As `round_fp4_entry`, but the scale is the true quotient amax / 6: the two differ when amax / 6 lies within one
    float32 rounding of an E4M3 tie. Source: `store_row_fp4` in SGLang's kv_layout.cuh.
    """
    scale = encode_e4m3((group_amax(x, FP4_ENTRY_GROUP) / E2M1_MAX).clamp(E4M3_MIN, E4M3_MAX))
    return encode_e2m1(x.float() / spread(decode_e4m3(scale), FP4_ENTRY_GROUP)), scale


def _index_scale(amax: torch.Tensor, floor: float) -> torch.Tensor:
    sixth = torch.tensor(1 / E2M1_MAX, dtype=torch.float32, device=amax.device)
    return encode_ue8m0(amax.clamp_min(floor) * sixth)


def round_fp4_index(x: torch.Tensor) -> torch.Tensor:
    """Round index queries or keys [..., n] to FP4 with one UE8M0 scale per 32 channels; values, float32.

    `s = 2^ceil(log2(max(amax, 6 * 2^-126) / 6))`. Source: SGLang's `fake_quant_fp4`.
    """
    scale = spread(decode_ue8m0(_index_scale(group_amax(x, INDEX_GROUP), _INDEX_FLOOR_ROUND)), INDEX_GROUP)
    return decode_e2m1(encode_e2m1(x.float() / scale + 0.0)) * scale


def quantise_fp4_index(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 codes [..., n] and UE8M0 bytes [..., n / 32] of an index key.

    Two stages, as the engine does: `round_fp4_index`, then packing with `s = 2^ceil(log2(max(amax / 6, 1e-4)))`. They
    cannot be merged: the second floor is higher, and a group whose maximum rounded down may fit a smaller scale. Zeros
    lose their sign. Source: `index_rope_quant_pack` in SGLang's fp4_indexer_rope.cuh.
    """
    rounded = round_fp4_index(x)
    scale = encode_ue8m0((group_amax(rounded, INDEX_GROUP) / E2M1_MAX).clamp_min(_INDEX_FLOOR_PACK))
    code = encode_e2m1(rounded / spread(decode_ue8m0(scale), INDEX_GROUP))
    return torch.where(code == _E2M1_NEGATIVE_ZERO, 0, code).to(torch.uint8), scale
