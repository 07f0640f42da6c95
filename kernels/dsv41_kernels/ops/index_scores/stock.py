"""The engine's paths for index scores on sm_90, on the same tensors."""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING

import torch

from dsv41_kernels import layout
from dsv41_kernels.engine import import_engine, lift
from dsv41_kernels.op import Inputs, Outputs, Problem, StockUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable


def prepare_paged(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """Decode and verify on sm_90: one row per program, keys read once per row."""
    if problem["ragged"]:
        raise StockUnavailableError("the engine scores prefill by another path")
    fp4_indexer = import_engine("sglang.kernels.ops.attention.dsv4.fp4_indexer")
    query, weight, keys = inputs["query"], inputs["weight"], inputs["keys"]

    def run() -> Outputs:
        scores = fp4_indexer.fp4_index_logits_paged(
            query,
            weight,
            inputs["request"],
            inputs["table"],
            inputs["length"],
            keys,
            layout.INDEX_SLOTS,
            inputs["max_length"],
            inputs["ratio"],
        )
        return {"scores": scores}

    return run


def prepare_paged_with_maxima(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """The same, followed by the engine's block maxima."""
    paged = prepare_paged(problem, inputs)
    blocks = import_engine("sglang.kernels.ops.attention.dsv4.candidate_blocks")

    def run() -> Outputs:
        scores = paged()["scores"]
        maxima = scores.new_empty(len(scores), -(-scores.shape[1] // 32) * 4)
        blocks.amax8_varlen(scores, inputs["length"], out=maxima)
        return {"scores": scores}

    try:
        run()
    except (ImportError, RuntimeError, OSError) as failure:
        raise StockUnavailableError(f"amax8_varlen is compiled at run time and did not build: {failure}") from failure
    return run


def prepare_requests(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """Prefill on sm_90: per request, keys dequantised once, einsum over chunks of rows, host synchronisation for each."""
    if not problem["ragged"]:
        raise StockUnavailableError("the engine scores decode by another path")
    scoring = import_engine("sglang.srt.layers.attention.dsv4.v41_indexer.scoring")
    engine_scores = lift("sglang.srt.layers.attention.dsv4.dsv41_sparse", "DeepseekV41Indexer.scores", {"torch": torch})
    ratio, table = inputs["ratio"], inputs["table"]
    device = table.device
    rows_per_request = problem["rows"]
    first_rows = list(itertools.accumulate(rows_per_request, initial=0))[:-1]
    pool_rows = inputs["request"][torch.tensor(first_rows, device=device)]
    tokens = [newest * ratio for newest in problem["contexts"]]
    positions = torch.cat(
        [torch.arange(end - count, end, device=device) for end, count in zip(tokens, rows_per_request, strict=True)]
    )
    slots = torch.cat(
        [
            table[row, : newest * ratio : ratio].long() // ratio
            for row, newest in zip(pool_rows.tolist(), problem["contexts"], strict=True)
        ]
    )

    class Indexer:
        """The engine's scores with the queries and weights of these inputs."""

        index_topk = 512
        scores = engine_scores

        def queries(self, *_: object) -> torch.Tensor:
            return inputs["query"]  # type: ignore[no-any-return]

        def head_weights(self, _: object) -> torch.Tensor:
            return inputs["weight"]  # type: ignore[no-any-return]

    def dequantise(_layer: int, index: torch.Tensor) -> torch.Tensor:
        return layout.read(layout.INDEX_KEY, inputs["keys"], layout.INDEX_SLOTS, index).to(torch.bfloat16)

    prefill = types.SimpleNamespace(
        indexer=Indexer(),
        layer_id=0,
        compress_ratio=ratio,
        freqs_cis=torch.zeros(int(positions.max()) + 1, 1, device=device),
        x=None,
        q_lora=None,
        positions=positions,
        req_rows=inputs["request"],
        req_pool_indices=pool_rows,
        k_slots=slots,
        seq_lens_cpu=tokens,
        rows_per_request=rows_per_request,
        rows_per_request_device=None,
        reset_outputs=lambda: None,
    )
    pool = types.SimpleNamespace(get_low_ratio_index_k_dequant=dequantise)

    def run() -> Outputs:
        last: torch.Tensor | None = None
        for _request, chunks in scoring.prefill_requests(inputs=prefill, token_to_kv_pool=pool):
            for chunk in chunks:
                last = chunk.scores  # the engine consumes a chunk before the next: nothing is kept
        return {} if last is None else {"last": last}

    return run
