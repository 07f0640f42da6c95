"""Candidate scores: score the published blocks alone and select the 512 best positions among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels import layout
from dsv41_kernels.check import relative_error
from dsv41_kernels.op import EXACT, Capability, CompileCase, Cost, Inputs, Op, Outputs, Problem, Stock, Tolerance
from dsv41_kernels.ops.candidate_scores import kernel, reference, stock
from dsv41_kernels.ops.candidates.reference import best, padded
from dsv41_kernels.ops.index_scores import scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_kernels.op import Kind

COUNT = 2048
TOPK = 512
_TOLERANCE = 1e-6
"""Relative norm, as in `index_scores`."""


def _problem(
    name: str,
    kind: Kind,
    contexts: Sequence[int],
    *,
    rows: int = 1,
    count: int = COUNT,
    topk: int = TOPK,
    ratio: int = 1,
    max_length: int = 0,
) -> Problem:
    sizes = {
        "contexts": list(contexts),
        "rows": rows,
        "count": count,
        "topk": topk,
        "ratio": ratio,
        "max_length": max_length or max([*contexts, 1]),
    }
    return Problem(name, kind, sizes)


_K = 1024
PROBLEMS = (
    _problem("lengths around blocks and pages", "correctness", [1, 7, 8, 9, 63, 64, 65, 1500], count=128, topk=16),
    _problem("verify of 6", "correctness", [1300, 70], rows=6, count=128, topk=16),
    _problem("ratio 2", "correctness", [1300, 70, 11], count=128, topk=32, ratio=2),
    _problem("nothing visible", "corner", [0, 0], count=128, topk=16, max_length=64),
    _problem("no rows", "corner", [], count=128, topk=16, max_length=64),
    _problem("1 x 4K of 1M", "production", [4 * _K], max_length=1024 * _K),
    _problem("1 x 32K of 1M", "production", [32 * _K], max_length=1024 * _K),
    _problem("1 x 128K of 1M", "production", [128 * _K], max_length=1024 * _K),
    _problem("1 x 1M", "production", [1024 * _K]),
    _problem("verify 1 x 6 x 1M", "production", [1024 * _K], rows=6),
    _problem("8 x 128K", "production", [128 * _K - 100 * i for i in range(8)]),
    _problem("64 x 32K", "production", [32 * _K - 100 * i for i in range(64)]),
)


def make_inputs(problem: Problem, device: torch.device, seed: int) -> Inputs:
    """Requests as in `index_scores`, and random blocks of each row, its newest among them."""
    lengths = [scene.consecutive_lengths(newest, problem["rows"], problem["ratio"]) for newest in problem["contexts"]]
    inputs: Inputs = scene.make_scene(
        lengths,
        ratio=problem["ratio"],
        heads=scene.HEADS,
        max_length=problem["max_length"],
        device=device,
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed + 1)
    blocks = torch.full((len(inputs["length"]), problem["count"]), -1, dtype=torch.int32)
    for row, length in enumerate(inputs["length"].tolist()):
        total = -(-length // 8)
        if total:
            others = torch.randperm(total - 1, generator=generator)[: problem["count"] - 1]
            listed = torch.cat([others, torch.tensor([total - 1])]).sort().values
            blocks[row, : len(listed)] = listed.int()
    return {**inputs, "blocks": blocks.to(device), "ratio": problem["ratio"], "topk": problem["topk"]}


def compare(actual: Outputs, expected: Outputs) -> list[str]:
    """Scores within the budget; the selection exactly what the kernel's own scores demand."""
    faults = []
    specified = ~expected["scores"].isnan()
    error = relative_error(actual["scores"][specified], expected["scores"][specified])
    if not error <= _TOLERANCE:
        faults.append(f"scores: relative error {error:.2e} above {_TOLERANCE:.0e}")
    own = torch.where(specified, actual["scores"], float("-inf")).cpu()
    topk = actual["positions"].shape[1]
    chosen = [best(row, topk) for row in own]
    for name in ("positions", "slots"):
        wanted = padded([of[index] for of, index in zip(expected[name].cpu(), chosen, strict=True)], topk)
        wrong = wanted != actual[name].cpu()
        if wrong.any():
            faults.append(
                f"{name}: {int(wrong.sum())} of {wrong.numel()} differ from the best of the kernel's own scores"
            )
    return faults


def _supports(capability: Capability, problem: Problem) -> str | None:  # noqa: ARG001
    if capability < (9, 0):
        return f"sm_{capability[0]}{capability[1]} has no packed bfloat16 product; sm_90 or newer has"
    return None


def cost(problem: Problem) -> Cost:
    """Listed keys, scores and selection once; one multiply-add per channel, head and listed position."""
    moved, products = 0.0, 0.0
    for newest in problem["contexts"]:
        for length in scene.consecutive_lengths(newest, problem["rows"], problem["ratio"]):
            listed = min(length, 8 * problem["count"])
            moved += listed * (layout.INDEX_KEY.entry_bytes + 4) + 4 * problem["count"] + 2 * 4 * problem["topk"]
            moved += scene.HEADS * layout.INDEX_DIM * 2
            products += listed * scene.HEADS * layout.INDEX_DIM
    return Cost(moved, 2 * products)


_CASE = CompileCase(
    "2048 blocks",
    kernel.candidate_scores_kernel,
    {
        "p_query": "*bf16",
        "p_weight": "*bf16",
        "p_request": "*i64",
        "p_table": "*i32",
        "p_length": "*i32",
        "p_block": "*i32",
        "p_keys": "*u8",
        "p_score": "*fp32",
        "p_maximum": "*fp32",
        "table_stride": "i32",
    },
    {"BLOCKS": COUNT, "HEADS": scene.HEADS, "RATIO": 1, "T": kernel.CONFIG.tile},
    {"num_warps": kernel.CONFIG.warps, "num_stages": kernel.CONFIG.stages},
    divisible=("table_stride",),
    programs=kernel.CONFIG.programs,
    fewer={120: 3},
)

OP = Op(
    name="candidate_scores",
    summary="Scores of the published blocks alone, and the best positions among them, packed and translated to cache slots",
    formula="score[t, i] = sum over h of relu(q[t, h] . k[s]) * w[t, h], s in blocks[t];  positions[t] = top-512 of score[t, :]",
    problems=PROBLEMS,
    make_inputs=make_inputs,
    reference=reference.candidate_scores,
    kernel=kernel.candidate_scores,
    tolerances={"scores": Tolerance(relative=_TOLERANCE), "slots": EXACT, "positions": EXACT},
    cost=cost,
    supports=_supports,
    replaces=("srt.layers.attention.dsv4.v41_indexer.dense_blocks.DenseBlocksBackend.consume_decode",),
    stocks=(Stock("dense scores with mask, top-k v2, finish", stock.prepare_masked),),
    compile_cases=(_CASE,),
    compare=compare,
)
