"""The pools that a rank hands over, in groups that share item numbers, and the copies between them and a staging buffer."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from sglang.srt.disaggregation.base.conn import StateType

from dsv41_serving.sglang_plugin.handoff.wire import Part, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

SPIN_S = 200e-6
"""How long a thread looks again and again before it sleeps: longer than a block takes that nothing is in the way of."""
_NUMBERS_ALIGNED = 4
_NUMBERS_AT_LEAST = 4096
"""One million tokens of a pool, in pages of 256."""

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


class Copy(Protocol):
    """A copy that a device was told to do."""

    def wait(self) -> None:
        """Return when it is done. Raises RuntimeError when the device could not do it."""


class Copier(Protocol):
    """Starts copies between the pools of a device and a block in its memory; they are done in the order they were started."""

    def pack(self, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        """Gather the items of `parts` into the beginning of `block`, uint8."""

    def unpack(self, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        """Scatter the beginning of `block` into the items of `parts`."""


def make_copier(groups: Sequence[Group], device: torch.device) -> Copier:
    """Return the copier of `device`. Raises UnpackableError when the kernels do not serve these pools."""
    return HostCopier(groups) if device.type == "cpu" else GpuCopier(groups, device)


class Done:
    """A copy that was done when it was started."""

    def wait(self) -> None:
        """As `Copy.wait`."""


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

    def pack(self, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        """As `Copier.pack`."""
        for pool, rows, packed in self._rows(parts, block):
            torch.index_select(pool, 0, rows, out=packed)
        return Done()

    def unpack(self, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        """As `Copier.unpack`."""
        for pool, rows, packed in self._rows(parts, block):
            pool.index_copy_(0, rows, packed)
        return Done()

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


class DeviceCopy:
    """A copy that is done when `event` has passed."""

    def __init__(self, event: torch.cuda.Event) -> None:
        """Follow `event`, recorded behind the copy."""
        self._event = event

    def wait(self) -> None:
        """As `Copy.wait`. The wait is short as a rule, and giving up the interpreter's lock for it costs more than it lasts."""
        until = time.perf_counter() + SPIN_S
        while not self._event.query():  # type: ignore[no-untyped-call]
            if time.perf_counter() > until:
                self._event.synchronize()
                return


class Numbers:
    """Item numbers in pinned host memory, which the device reads where they are."""

    def __init__(self, size: int) -> None:
        """Hold up to `size` numbers."""
        self.size = size
        self._memory = torch.zeros(size, dtype=torch.int32).pin_memory()
        self._view = self._memory.numpy()
        self.address = self._memory.data_ptr()
        self.copied: torch.cuda.Event | None = None
        """Passes when the device has read them; None before the first use."""

    def write(self, numbers: npt.NDArray[np.int32]) -> None:
        """Put `numbers` at the beginning."""
        self._view[: numbers.size] = numbers

    @property
    def free(self) -> bool:
        """Whether nothing reads them any more."""
        return self.copied is None or bool(self.copied.query())  # type: ignore[no-untyped-call]


class GpuCopier:
    """Copies by the kernels `pack` and `unpack`, on a stream of their own that goes before the forward pass.

    A block of 4,096 tokens is copied in 12 us on an H200; without the priority it waits for the kernel that is running, and in
    a prefill that is one of milliseconds. To start it by tensors took 640 us of a thread there, and several milliseconds beside a
    scheduler that wants the interpreter's lock, so addresses are passed, and nothing is allocated or copied to the device for it.
    """

    def __init__(self, groups: Sequence[Group], device: torch.device) -> None:
        """Put the tables of addresses on `device`. Raises UnpackableError when a pool is not aligned."""
        from dsv41_kernels.op import UnsupportedProblemError  # noqa: PLC0415 - Triton, on a GPU alone
        from dsv41_kernels.ops.pack import kernel  # noqa: PLC0415

        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._bytes = [group.bytes_per_item for group in groups]
        try:
            self._pools = [kernel.Pools.at(group.addresses, group.item_bytes, device) for group in groups]
        except UnsupportedProblemError as error:
            raise UnpackableError(str(error)) from None
        self._pack, self._unpack = (kernel.Starter(device, scatter=scatter) for scatter in (False, True))
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._numbers: list[Numbers] = []

    def pack(self, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        """As `Copier.pack`."""
        return self._start(self._pack, parts, block)

    def unpack(self, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        """As `Copier.unpack`."""
        return self._start(self._unpack, parts, block)

    def _start(self, starter: Any, parts: Sequence[Part], block: torch.Tensor) -> Copy:
        if not hasattr(self._thread, "ready"):
            torch.cuda.set_device(self._device)  # a new thread is on the first device
            self._thread.ready = True
        size = sum(part.items.size * self._bytes[part.group] for part in parts)
        if size > block.numel():
            raise ValueError(f"{size} bytes do not fit into a block of {block.numel()}")
        lined_up, starts = line_up(parts)
        numbers = self._take(lined_up.size)
        numbers.write(lined_up)
        event, at = torch.cuda.Event(), block.data_ptr()  # type: ignore[no-untyped-call]
        try:
            for part, start in zip(parts, starts, strict=True):
                indices = numbers.address + start * lined_up.itemsize
                starter.start(self._pools[part.group], indices, part.items.size, at, self._stream.cuda_stream)
                at += part.items.size * self._bytes[part.group]
        finally:
            # Also after a fault: a part that was started before it reads its numbers still.
            event.record(self._stream)
            numbers.copied = event
            with self._lock:
                self._numbers.append(numbers)
        return DeviceCopy(event)

    def _take(self, size: int) -> Numbers:
        """Return numbers that nothing reads, of at least `size`; a set that nothing reads is used again."""
        with self._lock:
            for at, numbers in enumerate(self._numbers):
                if numbers.size >= size and numbers.free:
                    return self._numbers.pop(at)
        return Numbers(max(size, _NUMBERS_AT_LEAST))


def line_up(parts: Sequence[Part]) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Return the item numbers of all `parts` in one int32 array, and where each part begins in it.

    Each begins at a multiple of 16 bytes: Triton compiles a kernel anew for an address that is none.
    """
    starts, end = [], 0
    for part in parts:
        starts.append(end)
        end += -(-part.items.size // _NUMBERS_ALIGNED) * _NUMBERS_ALIGNED
    numbers = np.zeros(end, dtype=np.int32)
    for part, start in zip(parts, starts, strict=True):
        numbers[start : start + part.items.size] = part.items
    return numbers, starts


def view_items(address: int, item_bytes: int, items: int) -> torch.Tensor:
    """Return `items` items in host memory from `address` on, as uint8 [items, item_bytes]."""
    memory = (ctypes.c_uint8 * (item_bytes * items)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(items, item_bytes)
