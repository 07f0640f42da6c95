"""Candidates: from one full scan, the 2048 blocks of 8 that later layers score, and the layer's own 512 positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels.op import ALL, EXACT, SOME, Capability, CompileCase, Cost, Inputs, Op, Problem, Stock
from dsv41_kernels.ops.candidates import kernel, reference, stock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_kernels.op import Kind

COUNT = 2048
TOPK = 512


def _problem(
    name: str,
    kind: Kind,
    lengths: Sequence[int],
    *,
    count: int = COUNT,
    topk: int = TOPK,
    levels: int = 0,
    ratio: int = 1,
    max_length: int = 0,
) -> Problem:
    sizes = {
        "lengths": list(lengths),
        "count": count,
        "topk": topk,
        "levels": levels,
        "ratio": ratio,
        "max_length": max_length or max([*lengths, 1]),
    }
    return Problem(name, kind, sizes)


_K = 1024
PROBLEMS = (
    _problem("lengths around blocks", "correctness", [1, 7, 8, 9, 63, 64, 65, 1100], count=128, topk=16),
    _problem("ratio 2, odd batch", "correctness", [1300, 2001, 4000], count=128, topk=32, ratio=2),
    _problem("ties", "correctness", [1300, 2999, 3000], count=128, topk=64, levels=3),
    _problem("own selection beyond the blocks", "correctness", [3000, 40], count=128, topk=128),
    _problem("nothing published", "correctness", [3000, 40, 1500], count=0, topk=128),
    _problem("every score equal", "corner", [2500, 30], count=128, topk=16, levels=1),
    _problem("nothing visible", "corner", [0, 0, 0], count=128, topk=16, max_length=64),
    _problem("as many blocks as are kept, and one more", "corner", [1023, 1024, 1025, 1033], count=128, topk=16),
    _problem("no rows", "corner", [], count=128, topk=16, max_length=64),
    _problem("1 x 4K of 1M", "production", [4 * _K], max_length=1024 * _K),
    _problem("1 x 32K of 1M", "production", [32 * _K], max_length=1024 * _K),
    _problem("1 x 128K", "production", [128 * _K]),
    _problem("1 x 1M", "production", [1024 * _K]),
    _problem("6 x 1M", "production", [1024 * _K - 5 + i for i in range(6)], max_length=1024 * _K),
    _problem("8 x 128K", "production", [128 * _K - 100 * i for i in range(8)]),
    _problem("64 x 32K", "production", [32 * _K - 100 * i for i in range(64)]),
    _problem("1 x 1M, nothing published", "production", [1024 * _K], count=0),
    _problem("8 x 64K, nothing published", "production", [64 * _K - 100 * i for i in range(8)], count=0, ratio=2),
)


def make_inputs(problem: Problem, device: torch.device, seed: int) -> Inputs:
    """Random scores and their block maxima; NaN beyond each row's length. `levels` > 0 draws from that many values."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(problem["lengths"]), problem["max_length"]
    if problem["levels"]:
        scores = torch.randint(0, problem["levels"], (rows, width), generator=generator).float() - 1
    else:
        scores = torch.randn(rows, width, generator=generator)
    scores = torch.where(scores == 0, torch.randn(rows, width, generator=generator).sign() * 0.0, scores)  # both zeros
    length = torch.tensor(problem["lengths"], dtype=torch.int32)
    seen = torch.arange(width)[None, :] < length[:, None]
    padded = torch.nn.functional.pad(scores.where(seen, float("-inf")), (0, -width % 8), value=float("-inf"))
    maxima = padded.view(rows, -(-width // 8), 8).amax(dim=2)
    table = (
        torch.randperm(rows * width, generator=generator).view(rows, width).repeat_interleave(problem["ratio"], dim=1)
    )
    return {
        "scores": scores.where(seen, float("nan")).to(device),
        "maxima": maxima.where(seen[:, ::8], float("nan")).to(device),
        "length": length.to(device),
        "request": torch.arange(rows).flip(0).to(device),
        "table": (table * problem["ratio"]).int().to(device),
        "ratio": problem["ratio"],
        "count": problem["count"],
        "topk": problem["topk"],
    }


def _supports(capability: Capability, problem: Problem) -> str | None:  # noqa: ARG001
    return None if capability >= (8, 0) else "written for sm_80 and newer"


def cost(problem: Problem) -> Cost:
    """Maxima once, the scores of `topk` blocks once, blocks and selection written once; no tensor-core work."""
    moved = 0.0
    for length in problem["lengths"]:
        blocks = -(-length // 8)
        kept = min(blocks, problem["count"])
        looked_into = min(blocks, problem["topk"])
        moved += 4 * blocks + 4 * kept + 4 * min(8 * looked_into, length)
        moved += (4 + 2 * 4) * min(length, problem["topk"])
    return Cost(moved, 0)


def _compile_cases() -> tuple[CompileCase, ...]:
    blocks = {
        "p_maximum": "*fp32",
        "p_length": "*i32",
        "p_part": "*i32",
        "p_part_maximum": "*fp32",
        "p_ticket": "*i32",
        "p_block": "*i32",
        "maximum_stride": "i32",
        "parts": "i32",
    }
    positions = {
        "p_score": "*fp32",
        "p_maximum": "*fp32",
        "p_block": "*i32",
        "p_length": "*i32",
        "p_request": "*i64",
        "p_table": "*i32",
        "p_slot": "*i32",
        "p_position": "*i32",
        "score_stride": "i32",
        "maximum_stride": "i32",
        "table_stride": "i32",
        "slot_stride": "i32",
        "position_stride": "i32",
    }
    strides = ("score_stride", "maximum_stride", "table_stride", "slot_stride", "position_stride")
    # The merge holds two tiles' worth of addresses once; the searches themselves do not spill on sm_90.
    merging = {90: 256, 100: 512, 103: 512, 120: 512}
    searching = {100: 64, 103: 64, 120: 64}
    return (
        *(
            CompileCase(
                f"{count} blocks of {chunks} chunks",
                kernel.select_blocks_kernel,
                blocks,
                {"K": count, "CHUNK": 16384, "CHUNKS": chunks, "PIN": count == COUNT},
                {"num_warps": warps},
                targets=targets,
                divisible=("maximum_stride",),
                stack=stack,
            )
            for count, targets in ((COUNT, ALL), (TOPK, SOME))
            for chunks, warps, stack in ((1, kernel.BLOCK_WARPS, searching), (8, kernel.MERGE_WARPS, merging))
        ),
        *(
            CompileCase(
                name,
                kernel.select_positions_kernel,
                positions,
                {"BLOCKS": count, "TOPK": TOPK, "RATIO": 1, "COMPACT": compact},
                {"num_warps": kernel.POSITION_WARPS},
                targets=targets,
                divisible=strides,
                programs=3,  # rows of a prefill share a multiprocessor
            )
            for name, count, compact, targets in (
                ("positions", COUNT, False, ALL),
                ("positions of a compact list", COUNT, True, SOME),
                ("positions of as many blocks", TOPK, False, SOME),
            )
        ),
    )


OP = Op(
    name="candidates",
    summary="The best blocks of a full scan, and the best positions, packed, sorted and translated to cache slots",
    formula="blocks[t] = top-2048 of maximum[t, b], newest first in line;  positions[t] = top-512 of score[t, s], s < length[t]",
    problems=PROBLEMS,
    make_inputs=make_inputs,
    reference=reference.candidates,
    kernel=kernel.candidates,
    tolerances={"blocks": EXACT, "slots": EXACT, "positions": EXACT},
    cost=cost,
    supports=_supports,
    replaces=(
        "kernels.ops.attention.dsv4.candidate_blocks.amax_topk_blocks",
        "kernels.ops.attention.dsv4.candidate_blocks.candidate_block_mask",
        "srt.layers.attention.dsv4.v41_indexer.scoring.select_decode",
    ),
    stocks=(
        Stock("amax, top-k v2, dense mask, finish", stock.prepare_jit),
        Stock("torch.topk, dense mask", stock.prepare_torch),
    ),
    compile_cases=_compile_cases(),
)
