"""The copies in plain torch, pool by pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dsv41_kernels.op import Outputs
    from dsv41_kernels.ops.pack.kernel import Pools


def pack(*, pools: Pools, indices: torch.Tensor, block: torch.Tensor) -> Outputs:
    """Write the rows `indices` of every pool one after the other; the rest of `block` stays."""
    rows = [pool[indices.long()].reshape(-1) for pool in pools.tensors]
    packed = torch.cat(rows)
    return {"block": torch.cat([packed, block[packed.numel() :]])}


def unpack(*, pools: Pools, indices: torch.Tensor, block: torch.Tensor) -> Outputs:
    """Write the rows back; every other row of every pool stays."""
    found, at = {}, 0
    for number, pool in enumerate(pools.tensors):
        size = indices.numel() * pool.shape[1]
        written = pool.clone()
        written[indices.long()] = block[at : at + size].view(indices.numel(), pool.shape[1])
        found[f"pool{number}"] = written
        at += size
    return found
