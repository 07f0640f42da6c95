"""What a hand-off over NIXL does without packing moves no byte on the GPU; this is the packing that torch can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels.op import Inputs, Outputs, Problem, Stock

if TYPE_CHECKING:
    from collections.abc import Callable


def _views(inputs: Inputs) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each pool with its part of the block as rows."""
    views, at, items = [], 0, inputs["indices"].numel()
    for pool in inputs["pools"].tensors:
        size = items * pool.shape[1]
        views.append((pool, inputs["block"][at : at + size].view(items, pool.shape[1])))
        at += size
    return views


def prepare_pack(_problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """One `index_select` for each pool."""
    views, rows = _views(inputs), inputs["indices"].long()

    def run() -> Outputs:
        for pool, part in views:
            torch.index_select(pool, 0, rows, out=part)
        return {"block": inputs["block"]}

    return run


def prepare_unpack(_problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """One `index_copy_` for each pool."""
    views, rows = _views(inputs), inputs["indices"].long()

    def run() -> Outputs:
        for pool, part in views:
            pool.index_copy_(0, rows, part)
        return {}

    return run


PACK = (Stock("torch-index-select", prepare_pack),)
UNPACK = (Stock("torch-index-copy", prepare_unpack),)
