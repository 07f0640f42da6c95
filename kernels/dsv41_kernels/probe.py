# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR2004
"""The functions of `device` on whole tensors: what the tests compare with `codec` and `layout`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsv41_kernels import device, layout


@triton.jit
def _map_kernel(p_x, p_y, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(p_x + o, mask=o < n, other=1)
    if FUNCTION == 0:
        tl.store(p_y + o, device.encode_e2m1(x), mask=o < n)
    if FUNCTION == 1:
        tl.store(p_y + o, device.encode_e4m3(x), mask=o < n)
    if FUNCTION == 2:
        tl.store(p_y + o, device.decode_e2m1(x), mask=o < n)
    if FUNCTION == 3:
        tl.store(p_y + o, device.decode_e4m3(x), mask=o < n)
    if FUNCTION == 4:
        tl.store(p_y + o, device.ceil_exponent(x), mask=o < n)


def _map(function: int, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    _map_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), FUNCTION=function, BLOCK=1024)
    return y


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """E2M1 codes of float32 `x`, uint8."""
    return _map(0, x, torch.int32).to(torch.uint8)


def encode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """E4M3 codes of float32 `x`, uint8."""
    return _map(1, x, torch.int32).to(torch.uint8)


def decode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Values of E2M1 codes (uint8), float32."""
    return _map(2, x, torch.float32)


def decode_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Values of E4M3 codes (uint8), float32."""
    return _map(3, x, torch.float32)


def ceil_exponent(x: torch.Tensor) -> torch.Tensor:
    """UE8M0 bytes of positive float32 `x`, uint8."""
    return _map(4, x, torch.int32).to(torch.uint8)


@triton.jit
def _load_kernel(
    p_cache, p_index, p_out, LAYOUT: tl.constexpr, SLOTS: tl.constexpr, PAGE_BYTES: tl.constexpr, T: tl.constexpr
):
    o = tl.arange(0, T)
    index = tl.load(p_index + o)
    even, odd = device.load_entries(p_cache, index, LAYOUT, SLOTS, PAGE_BYTES, T)
    tl.store(p_out + o[:, None] * 512 + tl.arange(0, 512)[None, :], tl.reshape(tl.join(even, odd), (T, 512)))
    if LAYOUT == device.V4:
        tl.debug_barrier()
        rope = device.load_rope(p_cache, index, SLOTS, PAGE_BYTES)
        tl.store(p_out + o[:, None] * 512 + 448 + tl.arange(0, 64)[None, :], rope)


def load_entries(entry: layout.EntryLayout, cache: torch.Tensor, slots: int, index: torch.Tensor) -> torch.Tensor:
    """Entries `index` [T] (int32; T a power of two) of a cache, bfloat16 [T, 512]."""
    out = torch.empty(len(index), 512, dtype=torch.bfloat16, device=cache.device)
    _load_kernel[(1,)](
        cache, index, out, LAYOUT=device.TAGS[entry.name], SLOTS=slots, PAGE_BYTES=entry.page_bytes(slots), T=len(index)
    )
    return out
