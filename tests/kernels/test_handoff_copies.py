"""The copies of the packed hand-off as a GPU does them, with the interpreted kernels and a CPU that is said to be the GPU."""

import types

import numpy as np
import pytest
import torch

from dsv41_kernels.ops.pack import kernel
from dsv41_serving.sglang_plugin.handoff.pools import DeviceCopy, GpuCopier, Group, view_items
from dsv41_serving.sglang_plugin.handoff.wire import Part

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SIZES = ((64, 16), (32,), (48, 48))
DEVICES: list[torch.device] = []
"""What threads were told to be on."""


class Event:
    """An event of a GPU that has passed after `looks` looks, or when it is waited for."""

    def __init__(self, looks: int = 1) -> None:
        self.left, self.recorded, self.waited = looks, False, False

    def record(self, stream: object) -> None:
        self.recorded = stream is not None

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0

    def synchronize(self) -> None:
        self.waited = True


class InterpretedStarter:
    """The kernel by address, as `Starter` starts it compiled."""

    def __init__(self, _device: torch.device, *, scatter: bool) -> None:
        self._scatter = scatter

    def start(self, pools: kernel.Pools, indices: int, items: int, block: int, _stream: int) -> None:
        if not items:
            return
        assert indices % kernel.ALIGNMENT == block % kernel.ALIGNMENT == 0
        numbers = view_items(indices, 4 * items, 1).view(torch.int32)[0]
        words = view_items(block, pools.bytes_per_item * items, 1).view(torch.int64)[0]
        count, grid = len(pools.item_bytes), kernel.make_grid(pools, items)
        kernel.copy_items_kernel[grid](
            pools.table, numbers, words, count, items, SCATTER=self._scatter, TILE=kernel.TILE_WORDS, num_warps=4
        )


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> tuple[GpuCopier, list[list[torch.Tensor]]]:
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device, priority: types.SimpleNamespace(cuda_stream=priority))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "set_device", DEVICES.append)
    monkeypatch.setattr(kernel, "Starter", InterpretedStarter)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    pools = [[torch.randint(0, 256, (9, size), dtype=torch.uint8) for size in sizes] for sizes in SIZES]
    groups = [
        Group(tuple(pool.data_ptr() for pool in each), sizes, 9) for each, sizes in zip(pools, SIZES, strict=True)
    ]
    return GpuCopier(groups, torch.device("cpu")), pools


def test_parts_of_several_groups_lie_one_behind_the_other_and_come_back(
    copier: tuple[GpuCopier, list[list[torch.Tensor]]],
) -> None:
    """Three items of the first group, none of the second, two of the third; 240 + 192 bytes in a slot of 512."""
    copies, pools = copier
    DEVICES.clear()
    source = [
        Part(0, np.array([8, 0, 4], np.int32)),
        Part(1, np.array([], np.int32)),
        Part(2, np.array([1, 2], np.int32)),
    ]
    target = [
        Part(0, np.array([1, 2, 3], np.int32)),
        Part(1, np.array([], np.int32)),
        Part(2, np.array([7, 6], np.int32)),
    ]
    before = [[pool.clone() for pool in each] for each in pools]
    block = torch.full((512,), 7, dtype=torch.uint8)
    copies.pack(source, block).wait()
    expected = [
        before[part.group][pool][part.items.astype(int)].flatten()
        for part in source
        for pool in range(len(SIZES[part.group]))
    ]
    assert torch.equal(block, torch.cat([*expected, torch.full((80,), 7, dtype=torch.uint8)]))
    copies.unpack(target, block).wait()
    assert [device.type for device in DEVICES] == ["cpu"]
    for there, here in zip(target, source, strict=True):
        for pool, old in zip(pools[there.group], before[there.group], strict=True):
            wanted = old.clone()
            wanted[there.items.astype(int)] = old[here.items.astype(int)]
            assert torch.equal(pool, wanted)


def test_numbers_are_used_again_only_when_the_device_has_read_them(
    copier: tuple[GpuCopier, list[list[torch.Tensor]]],
) -> None:
    """Of three copies the first is done when the third starts: two sets of numbers, and no copy is told that it waits for another's."""
    copies, _ = copier
    block, parts = torch.zeros(512, dtype=torch.uint8), [Part(0, np.array([1], np.int32))]
    first, second = (copies.pack(parts, block) for _ in range(2))
    first.wait()
    third = copies.pack(parts, block)
    assert [numbers.copied for numbers in copies._numbers] == [second._event, third._event]  # type: ignore[attr-defined]


def test_a_start_that_fails_keeps_its_numbers_until_the_device_is_done(
    copier: tuple[GpuCopier, list[list[torch.Tensor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part may have been started: the numbers are held with an event behind it."""
    copies, _ = copier
    started: list[int] = []

    def start(_pools: object, indices: int, *_rest: int) -> None:
        started.append(indices)
        if len(started) > 1:
            raise RuntimeError("no")

    monkeypatch.setattr(copies._pack, "start", start)
    parts = [Part(0, np.array([1], np.int32)), Part(2, np.array([1], np.int32))]
    with pytest.raises(RuntimeError):
        copies.pack(parts, torch.zeros(512, dtype=torch.uint8))
    (held,) = copies._numbers
    assert held.address == started[0]
    assert held.copied.recorded  # type: ignore[union-attr, attr-defined]


def test_a_copy_is_looked_at_before_anybody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is soon done is seen; for a long one the thread sleeps until the device wakes it."""
    soon, late = Event(looks=3), Event(looks=10**9)
    monkeypatch.setattr("dsv41_serving.sglang_plugin.handoff.pools.SPIN_S", float("inf"))
    DeviceCopy(soon).wait()  # type: ignore[arg-type]
    monkeypatch.setattr("dsv41_serving.sglang_plugin.handoff.pools.SPIN_S", 0.0)
    DeviceCopy(late).wait()  # type: ignore[arg-type]
    assert (soon.left, soon.waited, late.waited) == (-1, False, True)


def test_a_block_too_short_for_its_items_is_refused_before_anything_is_copied(
    copier: tuple[GpuCopier, list[list[torch.Tensor]]],
) -> None:
    copies, pools = copier
    before = [[pool.clone() for pool in each] for each in pools]
    with pytest.raises(ValueError, match="240 bytes do not fit into a block of 80"):
        copies.unpack([Part(0, np.array([8, 0, 4], np.int32))], torch.zeros(80, dtype=torch.uint8))
    assert all(
        torch.equal(a, b) for each, old in zip(pools, before, strict=True) for a, b in zip(each, old, strict=True)
    )


def test_numbers_too_few_for_a_copy_are_left_alone(
    copier: tuple[GpuCopier, list[list[torch.Tensor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, _ = copier
    monkeypatch.setattr("dsv41_serving.sglang_plugin.handoff.pools._NUMBERS_AT_LEAST", 4)
    block = torch.zeros(1024, dtype=torch.uint8)
    copies.pack([Part(0, np.array([1], np.int32))], block).wait()
    copies.pack([Part(0, np.arange(9, dtype=np.int32))], block).wait()
    assert sorted(numbers.size for numbers in copies._numbers) == [4, 12]
