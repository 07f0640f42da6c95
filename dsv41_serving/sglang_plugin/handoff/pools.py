"""The pools that a rank hands over, in groups that share item numbers, and the copies between them and a staging buffer."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from sglang.srt.disaggregation.base.conn import StateType

from dsv41_serving.sglang_plugin.handoff.wire import Part, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Items of these are not whole rows of fixed size on both sides.
_UNEVEN = frozenset({StateType.DSA_TAIL})


class UnpackableError(Exception):
    """The pools of this engine cannot be packed; the message says why."""


@dataclass(frozen=True)
class Group:
    """Pools whose items go together: by layer all KV pools, or the buffers of one kind of state."""

    addresses: tuple[int, ...]
    item_bytes: tuple[int, ...]
    items: int
    """That every pool of the group has at least."""

    @property
    def bytes_per_item(self) -> int:
        """Bytes of one item of every pool together."""
        return sum(self.item_bytes)


def read_groups(kv_args: Any) -> tuple[Group, ...]:
    """Return the groups of an engine: KV first, then each kind of state in SGLang's order.

    Raises UnpackableError for pools that are elsewhere than on the device, or whose items are not whole rows.
    """
    if set(kv_args.kv_data_mem_kinds) != {"VRAM"}:
        raise UnpackableError("KV lies in more than one kind of memory")
    if uneven := _UNEVEN & set(kv_args.state_types or []):
        raise UnpackableError(f"state {', '.join(sorted(uneven))} has no whole items")
    lists = [(kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens)]
    states = (kv_args.state_data_ptrs, kv_args.state_data_lens, kv_args.state_item_lens)
    lists += list(zip(*((each or []) for each in states), strict=True))
    return tuple(_make_group(*each) for each in lists)


def describe_layout(kv_args: Any, *, ranks: int) -> str:
    """Return the fingerprint of what both ends must have alike for a block to mean the same: pools, their order, TP size."""
    return fingerprint(
        {
            "kv": [kv_args.kv_item_lens, kv_args.kv_layer_ids, kv_args.kv_layout, kv_args.kv_cache_dtype_str],
            "states": [[str(each) for each in kv_args.state_types], kv_args.state_item_lens, kv_args.state_layer_ids],
            "page_size": kv_args.page_size,
            "ranks": ranks,
        }
    )


def _make_group(addresses: Sequence[int], lengths: Sequence[int], item_bytes: Sequence[int]) -> Group:
    if not addresses or not all(addresses) or not all(item_bytes):
        raise UnpackableError("a pool is empty or left out")
    items = min(length // size for length, size in zip(lengths, item_bytes, strict=True))
    return Group(tuple(addresses), tuple(item_bytes), items)


def size_of(groups: Sequence[Group], parts: Sequence[Part]) -> int:
    """Return the bytes of a block with `parts`. Raises ValueError for a group or item that does not exist."""
    total = 0
    for part in parts:
        if not 0 <= part.group < len(groups):
            raise ValueError(f"there is no group {part.group} of pools")
        group = groups[part.group]
        if part.items.size and not 0 <= int(part.items.min()) <= int(part.items.max()) < group.items:
            raise ValueError(f"group {part.group} has {group.items} items, not {int(part.items.max())}")
        total += part.items.size * group.bytes_per_item
    return total


class Copier(Protocol):
    """Copies between the pools of a device and a block in its memory."""

    def pack(self, parts: Sequence[Part], block: torch.Tensor) -> None:
        """Gather the items of `parts` into the beginning of `block`, uint8; done when this returns."""

    def unpack(self, parts: Sequence[Part], block: torch.Tensor) -> None:
        """Scatter the beginning of `block` into the items of `parts`; done when this returns."""


def make_copier(groups: Sequence[Group], device: torch.device) -> Copier:
    """Return the copier of `device`. Raises UnpackableError when the kernels do not serve these pools."""
    return HostCopier(groups) if device.type == "cpu" else GpuCopier(groups, device)


class HostCopier:
    """Copies by torch, for pools in host memory."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """View every pool as rows of words, of bytes where one of them is not aligned: torch scatters words six times as fast."""
        places = [place for group in groups for place in (*group.addresses, *group.item_bytes)]
        self._word = torch.uint8 if any(place % torch.int64.itemsize for place in places) else torch.int64
        self._pools = [
            [
                view_items(address, size, group.items).view(self._word)
                for address, size in zip(group.addresses, group.item_bytes, strict=True)
            ]
            for group in groups
        ]

    def pack(self, parts: Sequence[Part], block: torch.Tensor) -> None:
        """As `Copier.pack`."""
        for pool, rows, packed in self._rows(parts, block):
            torch.index_select(pool, 0, rows, out=packed)

    def unpack(self, parts: Sequence[Part], block: torch.Tensor) -> None:
        """As `Copier.unpack`."""
        for pool, rows, packed in self._rows(parts, block):
            pool.index_copy_(0, rows, packed)

    def _rows(
        self, parts: Sequence[Part], block: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield (pool, item numbers, its rows in the block)."""
        at = 0
        block = block[: block.numel() // self._word.itemsize * self._word.itemsize].view(self._word)
        for part in parts:
            rows = torch.from_numpy(part.items.astype("int64"))
            for pool in self._pools[part.group]:
                size = len(rows) * pool.shape[1]
                yield pool, rows, block[at : at + size].view(len(rows), pool.shape[1])
                at += size


class GpuCopier:
    """Copies by the kernels `pack` and `unpack`, on a stream of their own."""

    def __init__(self, groups: Sequence[Group], device: torch.device) -> None:
        """Put the tables of addresses on `device`. Raises UnpackableError when a pool is not aligned."""
        from dsv41_kernels.op import UnsupportedProblemError  # noqa: PLC0415 - Triton, on a GPU alone
        from dsv41_kernels.ops.pack import kernel  # noqa: PLC0415

        self._kernel = kernel
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._bytes = [group.bytes_per_item for group in groups]
        try:
            self._pools = [kernel.Pools.at(group.addresses, group.item_bytes, device) for group in groups]
        except UnsupportedProblemError as error:
            raise UnpackableError(str(error)) from None

    def pack(self, parts: Sequence[Part], block: torch.Tensor) -> None:
        """As `Copier.pack`."""
        self._run(self._kernel.pack, parts, block)

    def unpack(self, parts: Sequence[Part], block: torch.Tensor) -> None:
        """As `Copier.unpack`."""
        self._run(self._kernel.unpack, parts, block)

    def _run(self, copy: Any, parts: Sequence[Part], block: torch.Tensor) -> None:
        at = 0
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for part in parts:
                indices = torch.from_numpy(part.items.copy()).to(self._device)
                copy(pools=self._pools[part.group], indices=indices, block=block[at:])
                at += part.items.size * self._bytes[part.group]
            self._stream.synchronize()


def view_items(address: int, item_bytes: int, items: int) -> torch.Tensor:
    """Return `items` items in host memory from `address` on, as uint8 [items, item_bytes]."""
    memory = (ctypes.c_uint8 * (item_bytes * items)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(items, item_bytes)
