"""The engine's consumer on sm_90: every visible tile is visited under a dense mask, then top-k over the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels import layout
from dsv41_kernels.engine import import_engine
from dsv41_kernels.op import Inputs, Outputs, Problem, StockUnavailableError
from dsv41_kernels.ops.index_scores import scene

if TYPE_CHECKING:
    from collections.abc import Callable


def masked_bytes(problem: Problem) -> int:
    """Least bytes of the engine's masked consumer, the counterpart of `problem.cost`.

    Per row and visible position a byte of mask, a float32 score written by `_fp4_index_logits_paged_kernel` and read by the top-k;
    per listed position its key and its token; the query; the top-k's index, written and read, and the slot.
    """
    moved = 0
    for newest in problem["contexts"]:
        for length in scene.consecutive_lengths(newest, problem["rows"], problem["ratio"]):
            listed = min(length, 8 * problem["count"])
            moved += length * (1 + 4 + 4) + listed * (layout.INDEX_KEY.entry_bytes + 4)
            moved += scene.HEADS * layout.INDEX_DIM * 2 + 3 * 4 * problem["topk"]
    return moved


def prepare_masked(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """DenseBlocksBackend.consume_decode after the projections. The mask is made once per step, by the source, not here."""
    blocks_module = import_engine("sglang.kernels.ops.attention.dsv4.candidate_blocks")
    topk_module = import_engine("sglang.kernels.ops.attention.dsv4.topk")
    fp4_indexer = import_engine("sglang.kernels.ops.attention.dsv4.fp4_indexer")
    rows, topk, width = len(inputs["length"]), problem["topk"], problem["max_length"]
    mask = blocks_module.candidate_block_mask(inputs["blocks"], width, 8)

    def run() -> Outputs:
        plan = topk_module.plan_topk_v2(inputs["length"])
        scores = fp4_indexer.fp4_index_logits_paged(
            inputs["query"],
            inputs["weight"],
            inputs["request"],
            inputs["table"],
            inputs["length"],
            inputs["keys"],
            layout.INDEX_SLOTS,
            width,
            inputs["ratio"],
            mask,
        )
        index = torch.empty((rows, min(topk, width)), dtype=torch.int32, device=scores.device)
        topk_module.topk_transform_paged_v2(scores, inputs["length"], None, index, 1, plan)
        slots = torch.empty((rows, topk), dtype=torch.int32, device=scores.device)
        fp4_indexer.finish_paged_indexer_topk(
            index,
            scores,
            inputs["length"],
            inputs["request"],
            inputs["table"],
            slots,
            None,
            inputs["ratio"],
            True,  # noqa: FBT003
        )
        return {}

    try:
        run()
    except (ImportError, RuntimeError, OSError) as failure:
        raise StockUnavailableError(
            f"the engine's kernels are compiled at run time and did not build: {failure}"
        ) from failure
    return run
