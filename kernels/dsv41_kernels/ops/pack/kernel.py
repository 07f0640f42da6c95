# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN201
"""Gather pages of many pools into one block, and scatter them back: the same copy in both directions, one launch each.

    block = pool 0: item i0, item i1, ...; pool 1: item i0, item i1, ...; ...        every item whole, in the order of the indices

Pools lie anywhere in memory and their items have sizes of their own, so the kernel gets a table of addresses.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from dsv41_kernels.op import Outputs, UnsupportedProblemError

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT = 16
"""Addresses and sizes are multiples of this, so that a thread moves 16 bytes at once."""
WORD = 8
TILE_WORDS = 1024


# One compilation for every number of pages: the first request of a length must not wait for a compiler.
@triton.jit(do_not_specialize=["pools", "items"])
def copy_items_kernel(
    p_table,  # [3, pools] int64: address, words of an item, words of the items of the pools before
    p_indices,  # [items] int32
    p_block,  # int64 words
    pools,
    items,
    SCATTER: tl.constexpr,
    TILE: tl.constexpr,
):
    """TILE words of one item of one pool."""
    pair = tl.program_id(0)
    pool = pair // items
    item = (pair % items).to(tl.int64)
    address = tl.load(p_table + pool)
    size = tl.load(p_table + pools + pool)
    before = tl.load(p_table + 2 * pools + pool)
    index = tl.load(p_indices + item).to(tl.int64)
    o_word = tl.program_id(1) * TILE + tl.arange(0, TILE)
    m_word = o_word < size
    p_pool = tl.multiple_of((address + index * size * 8).to(tl.pointer_type(tl.int64)), 16)
    p_packed = tl.multiple_of(p_block + before * items + item * size, 16)
    if SCATTER:
        tl.store(p_pool + o_word, tl.load(p_packed + o_word, mask=m_word), mask=m_word)
    else:
        tl.store(p_packed + o_word, tl.load(p_pool + o_word, mask=m_word), mask=m_word)


@dataclass(frozen=True)
class Pools:
    """Cache pools of one device by address, each a row of items of its own size."""

    table: torch.Tensor
    """int64 [3, pools] on the device: address, words of an item, words of an item of all pools before."""
    item_bytes: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...] = ()
    """The pools, where they are known as tensors: uint8 [items, item_bytes]."""

    @classmethod
    def at(
        cls, addresses: Sequence[int], item_bytes: Sequence[int], device: torch.device | str, tensors: Any = ()
    ) -> Pools:
        """Describe pools at `addresses` whose items have `item_bytes` bytes.

        Raises UnsupportedProblemError when one of them is no multiple of 16.
        """
        for number, (address, size) in enumerate(zip(addresses, item_bytes, strict=True)):
            if address % ALIGNMENT or size % ALIGNMENT or not size:
                raise UnsupportedProblemError(
                    f"pool {number}: address {address:#x} and item of {size} bytes must be multiples of {ALIGNMENT}"
                )
        words = [size // WORD for size in item_bytes]
        before = [sum(words[:number]) for number in range(len(words))]
        return cls(
            torch.tensor([list(addresses), words, before], dtype=torch.int64, device=device),
            tuple(item_bytes),
            tuple(tensors),
        )

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Pools:
        """Describe contiguous uint8 `tensors` [items, item_bytes] of one device."""
        for tensor in tensors:
            if tensor.dtype != torch.uint8 or tensor.ndim != 2 or not tensor.is_contiguous():  # noqa: PLR2004
                raise UnsupportedProblemError(
                    f"a pool is contiguous uint8 [items, bytes], not {tensor.dtype} {tuple(tensor.shape)}"
                )
        addresses = [tensor.data_ptr() for tensor in tensors]
        return cls.at(addresses, [tensor.shape[1] for tensor in tensors], tensors[0].device, tensors)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pools:
        """Copies of the pools lie elsewhere."""
        return Pools.of(copy.deepcopy(self.tensors, memo))

    def copy_(self, other: Pools) -> Pools:
        """Copy the bytes of the pools of `other` into these, which stay where they are; both are known as tensors."""
        for own, theirs in zip(self.tensors, other.tensors, strict=True):
            own.copy_(theirs)
        return self

    @property
    def bytes_per_item(self) -> int:
        """Bytes of one item of every pool together."""
        return sum(self.item_bytes)


def make_grid(pools: Pools, items: int) -> tuple[int, int]:
    """Return (pools times items, tiles of the largest item)."""
    return len(pools.item_bytes) * items, triton.cdiv(max(pools.item_bytes) // WORD, TILE_WORDS)


def pack(*, pools: Pools, indices: torch.Tensor, block: torch.Tensor) -> Outputs:
    """Gather items into a block.

    Args:
        pools: where the items lie.
        indices: int32 [items], the item numbers, the same in every pool.
        block: uint8 [at least items * pools.bytes_per_item], contiguous and aligned to 16 bytes; its beginning is written.

    Returns:
        `block`.

    Raises:
        UnsupportedProblemError: a shape or type the kernel does not serve.
    """
    _copy(pools, indices, block, scatter=False)
    return {"block": block}


def unpack(*, pools: Pools, indices: torch.Tensor, block: torch.Tensor) -> Outputs:
    """Scatter the beginning of a block into items; the inverse of `pack` with the same arguments. No index may occur twice.

    Returns:
        The pools as `pool0`, `pool1`, ... where they are known as tensors.

    Raises:
        UnsupportedProblemError: as `pack`.
    """
    _copy(pools, indices, block, scatter=True)
    return {f"pool{number}": tensor for number, tensor in enumerate(pools.tensors)}


class Starter:
    """Starts copies of one direction by address. What Triton asks and checks at every start is done once here.

    For callers on whose threads a microsecond of Python is dear; `pack` and `unpack` say what is copied and check it.
    """

    def __init__(self, device: torch.device, *, scatter: bool) -> None:
        """Compile for `device`, which is a GPU, and load."""
        self._scatter = scatter
        with torch.cuda.device(device):
            words = torch.empty(2, dtype=torch.int64, device=device)
            numbers = torch.empty(4, dtype=torch.int32, device=device)
            self._compiled = copy_items_kernel.warmup(
                words, numbers, words, 1, 1, SCATTER=scatter, TILE=TILE_WORDS, num_warps=4, grid=(1, 1)
            )
            self._compiled[(1, 1, 1)]  # loads it

    def start(self, pools: Pools, indices: int, items: int, block: int, stream: int) -> None:
        """Copy `items` items between `pools` and the block at `block`, on the CUDA stream `stream`.

        Args:
            pools: where the items lie.
            indices: address of `items` int32 that the device can read, pinned memory too. A multiple of 16, as `block`.
            items: how many.
            block: address of at least items * pools.bytes_per_item bytes of the device.
            stream: handle of a stream of the device, which is current on this thread.
        """
        if items:
            count, grid = len(pools.item_bytes), make_grid(pools, items)
            arguments = (pools.table.data_ptr(), indices, block, count, items, self._scatter, TILE_WORDS)
            self._compiled[(*grid, 1)](*arguments, stream=stream)


def _copy(pools: Pools, indices: torch.Tensor, block: torch.Tensor, *, scatter: bool) -> None:
    items = indices.numel()
    if indices.dtype != torch.int32 or indices.ndim != 1 or not indices.is_contiguous():
        raise UnsupportedProblemError(
            f"indices must be contiguous int32 [items], not {indices.dtype} {tuple(indices.shape)}"
        )
    if block.dtype != torch.uint8 or block.ndim != 1 or not block.is_contiguous() or block.data_ptr() % ALIGNMENT:
        raise UnsupportedProblemError(f"block must be contiguous uint8, aligned to {ALIGNMENT} bytes")
    if block.numel() < items * pools.bytes_per_item:
        raise UnsupportedProblemError(
            f"{items} items of {pools.bytes_per_item} bytes do not fit into a block of {block.numel()}"
        )
    if items == 0:
        return
    copy_items_kernel[make_grid(pools, items)](
        pools.table,
        indices,
        block[: block.numel() // WORD * WORD].view(torch.int64),
        len(pools.item_bytes),
        items,
        SCATTER=scatter,
        TILE=TILE_WORDS,
        num_warps=4,
    )
