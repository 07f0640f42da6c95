"""The engine's selection on sm_90: block maxima, top-k, dense mask over the context, top-k over all scores, translation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels.engine import import_engine
from dsv41_kernels.op import Inputs, Outputs, Problem, StockUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable


def prepare_jit(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """DenseBlocksBackend.publish_decode after the scores, with the engine's run-time compiled kernels."""
    blocks_module = import_engine("sglang.kernels.ops.attention.dsv4.candidate_blocks")
    topk_module = import_engine("sglang.kernels.ops.attention.dsv4.topk")
    finish = import_engine("sglang.kernels.ops.attention.dsv4.fp4_indexer").finish_paged_indexer_topk
    scores = _aligned(inputs["scores"])
    length, topk = inputs["length"], problem["topk"]
    rows, width = scores.shape

    def run() -> Outputs:
        plan = topk_module.plan_topk_v2(length)
        if problem["count"]:
            blocks = blocks_module.amax_topk_blocks(scores, length, (length + 7) // 8, problem["count"])
            blocks_module.candidate_block_mask(blocks, width, 8)
        index = torch.empty((rows, min(topk, width)), dtype=torch.int32, device=scores.device)
        topk_module.topk_transform_paged_v2(scores, length, None, index, 1, plan)
        slots = torch.empty((rows, topk), dtype=torch.int32, device=scores.device)
        finish(index, scores, length, inputs["request"], inputs["table"], slots, None, inputs["ratio"], False)  # noqa: FBT003
        return {"slots": slots}

    try:
        run()
    except (ImportError, RuntimeError, OSError) as failure:
        raise StockUnavailableError(
            f"the engine's kernels are compiled at run time and did not build: {failure}"
        ) from failure
    return run


def prepare_torch(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """The same through the engine's torch functions (its path on GPUs without the run-time compiled top-k)."""
    blocks_module = import_engine("sglang.kernels.ops.attention.dsv4.candidate_blocks")
    finish = import_engine("sglang.kernels.ops.attention.dsv4.fp4_indexer").finish_paged_indexer_topk
    scores, length, topk = inputs["scores"], inputs["length"], problem["topk"]
    rows, width = scores.shape
    column = torch.arange(width, device=scores.device)

    def run() -> Outputs:
        visible = scores.masked_fill(column >= length[:, None], float("-inf"))
        if problem["count"]:
            blocks = blocks_module.select_candidate_block_ids(visible, length[:, None], problem["count"], 8)
            blocks_module.candidate_block_mask(blocks, width, 8)
        index = visible.topk(min(topk, width), dim=-1, sorted=False).indices.int()
        slots = torch.empty((rows, topk), dtype=torch.int32, device=scores.device)
        finish(index, visible, length, inputs["request"], inputs["table"], slots, None, inputs["ratio"], True)  # noqa: FBT003
        return {"slots": slots}

    return run


def _aligned(scores: torch.Tensor) -> torch.Tensor:
    """Scores with rows of a multiple of 32 floats, as the engine's scorer allocates them."""
    rows, width = scores.shape
    padded = torch.empty(rows, -(-width // 32) * 32, dtype=torch.float32, device=scores.device)
    padded[:, :width] = scores
    return padded[:, :width]
