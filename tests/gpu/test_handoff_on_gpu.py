"""The copies of the packed hand-off on the hardware: what a block holds, from any thread, with many under way at once."""

import concurrent.futures
from itertools import chain

import numpy as np
import pytest
import torch

pytest.importorskip("sglang")

from dsv41_serving.sglang_plugin.handoff.pools import GpuCopier, Group, HostCopier
from dsv41_serving.sglang_plugin.handoff.wire import Part

ITEMS = 40
SIZES = ((74_880, 74_880, 149_760, 8_704, 17_408), (149_760,) * 6, (16, 48))


def groups_of(pools: list[list[torch.Tensor]]) -> list[Group]:
    return [
        Group(tuple(pool.data_ptr() for pool in each), sizes, ITEMS) for each, sizes in zip(pools, SIZES, strict=True)
    ]


def draw_parts(generator: np.random.Generator) -> list[Part]:
    """Items of each group in any order, none twice, sometimes none."""
    return [
        Part(group, generator.permutation(ITEMS)[: generator.integers(0, 17)].astype(np.int32))
        for group in range(len(SIZES))
    ]


def test_blocks_hold_what_a_host_packs_and_come_back_whole() -> None:
    """64 copies from four new threads, none waited for before all were started: each block equals the host's; then back again."""
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    generator = np.random.default_rng()
    host = [[torch.randint(0, 256, (ITEMS, size), dtype=torch.uint8) for size in sizes] for sizes in SIZES]
    there = [[pool.to(device) for pool in each] for each in host]
    copier, oracle = GpuCopier(groups_of(there), device), HostCopier(groups_of(host))
    torch.cuda.synchronize(device)
    drawn = [draw_parts(generator) for _ in range(64)]
    blocks = [torch.full((32 * 2**20,), 7, dtype=torch.uint8, device=device) for _ in drawn]
    torch.cuda.synchronize(device)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(copier.pack, drawn, blocks))
    for parts, block, copy in zip(drawn, blocks, copies, strict=True):
        copy.wait()
        expected = torch.full((32 * 2**20,), 7, dtype=torch.uint8)
        oracle.pack(parts, expected)
        assert torch.equal(block.cpu(), expected)
    parts, block = draw_parts(generator), blocks[0].random_(0, 256)
    torch.cuda.synchronize(device)
    copier.unpack(parts, block).wait()
    oracle.unpack(parts, block.cpu())
    for device_pool, host_pool in zip(chain(*there), chain(*host), strict=True):
        assert torch.equal(device_pool.cpu(), host_pool)
