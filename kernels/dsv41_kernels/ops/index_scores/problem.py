"""Index scores on FP4 keys: every visible position of every row, with block maxima."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels import layout
from dsv41_kernels.check import relative_error
from dsv41_kernels.op import ALL, SOME, Capability, CompileCase, Cost, Inputs, Op, Outputs, Problem, Stock, Tolerance
from dsv41_kernels.ops.index_scores import kernel, reference, scene, stock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEAST_HEADS = 8
_TOLERANCE = 1e-6
"""Relative norm. All products are exact; what remains is the order of float32 sums over 128 channels and 32 heads."""


def _problem(
    name: str,
    kind: str,
    contexts: Sequence[int],
    *,
    rows: int | Sequence[int] = 1,
    group_rows: int = 1,
    max_length: int | None = None,
    ratio: int = 1,
    heads: int = scene.HEADS,
    ragged: bool = False,
) -> Problem:
    counts = [rows] * len(contexts) if isinstance(rows, int) else list(rows)
    sizes = {
        "contexts": list(contexts),
        "rows": counts,
        "group_rows": group_rows,
        "ragged": ragged,
        "max_length": max_length or max([*contexts, 1]),
        "ratio": ratio,
        "heads": heads,
    }
    return Problem(name, kind, sizes)  # type: ignore[arg-type]


_K = 1024
PROBLEMS = (
    _problem("decode lengths around blocks and pages", "correctness", [1, 7, 8, 9, 63, 64, 65, 130]),
    _problem("decode ratio 2, odd batch", "correctness", [129, 64, 1], ratio=2, max_length=300),
    _problem("decode 16 heads", "correctness", [70, 3], heads=16),
    _problem("verify of 6", "correctness", [130, 66, 6], rows=6, group_rows=6),
    _problem("verify of 6 across a page, ratio 2", "correctness", [66, 64], rows=6, group_rows=6, ratio=2),
    _problem("verify of 2 and 4", "correctness", [66, 9], rows=4, group_rows=4),
    _problem("prefill ragged", "correctness", [70, 3, 131], rows=[17, 3, 9], group_rows=8, ragged=True),
    _problem(
        "prefill ragged, ratio 2, groups of 2", "correctness", [65, 40], rows=[7, 4], group_rows=2, ragged=True, ratio=2
    ),
    _problem("nothing visible", "corner", [0, 0, 0], max_length=64),
    _problem("verify before the first position", "corner", [3, 0], rows=6, group_rows=6),
    _problem("no rows", "corner", [], max_length=64),
    _problem("capacity far beyond the length", "corner", [5, 200], max_length=5000),
    _problem("decode 1 x 4K of 8K", "production", [4 * _K], max_length=8 * _K),
    _problem("decode 1 x 4K of 1M", "production", [4 * _K], max_length=1024 * _K),
    _problem("decode 1 x 32K of 1M", "production", [32 * _K], max_length=1024 * _K),
    _problem("decode 1 x 128K of 1M", "production", [128 * _K], max_length=1024 * _K),
    _problem("decode 1 x 1M", "production", [1024 * _K]),
    _problem("decode 1 x 512K, ratio 2", "production", [512 * _K], ratio=2),
    _problem("decode 8 x 128K", "production", [128 * _K - 100 * i for i in range(8)], max_length=128 * _K),
    _problem("decode 64 x 32K", "production", [32 * _K - 100 * i for i in range(64)], max_length=32 * _K),
    _problem("decode 64, one 128K among 4K", "production", [128 * _K] + [4 * _K] * 63, max_length=128 * _K),
    _problem("verify 1 x 6 x 32K", "production", [32 * _K], rows=6, group_rows=6),
    _problem("verify 1 x 6 x 1M", "production", [1024 * _K], rows=6, group_rows=6),
    _problem("verify 8 x 6 x 128K", "production", [128 * _K - 100 * i for i in range(8)], rows=6, group_rows=6),
    _problem("prefill 1024 of 4K", "production", [4 * _K], rows=1024, group_rows=8, ragged=True),
    _problem("prefill 1024 of 32K", "production", [32 * _K], rows=1024, group_rows=8, ragged=True),
    _problem("prefill 64 of 256K", "production", [256 * _K], rows=64, group_rows=8, ragged=True),
    _problem(
        "prefill 3 requests", "production", [16 * _K, 5000, 999], rows=[1024, 700, 300], group_rows=8, ragged=True
    ),
)


def make_inputs(problem: Problem, device: torch.device, seed: int) -> Inputs:
    """Requests of `contexts[i]` visible positions at the newest of their `rows[i]` rows."""
    lengths = [
        scene.consecutive_lengths(newest, rows, problem["ratio"])
        for newest, rows in zip(problem["contexts"], problem["rows"], strict=True)
    ]
    inputs: Inputs = scene.make_scene(
        lengths,
        ratio=problem["ratio"],
        heads=problem["heads"],
        max_length=problem["max_length"],
        device=device,
        seed=seed,
    )
    starts = kernel.split_rows(problem["rows"], problem["group_rows"], device) if problem["ragged"] else None
    grouping = {"ratio": problem["ratio"], "max_length": problem["max_length"], "group_rows": problem["group_rows"]}
    return {**inputs, **grouping, "starts": starts}


def compare(actual: Outputs, expected: Outputs) -> list[str]:
    """Scores within the budget where something is visible; maxima equal to those of the kernel's own scores."""
    faults = []
    for name in ("scores", "maxima"):
        specified = ~expected[name].isnan()
        error = relative_error(actual[name][specified], expected[name][specified])
        if not error <= _TOLERANCE:
            faults.append(f"{name}: relative error {error:.2e} above {_TOLERANCE:.0e}")
    scores = torch.where(expected["scores"].isnan(), float("-inf"), actual["scores"].double())
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % 8), value=float("-inf"))
    best = padded.view(len(scores), padded.shape[1] // 8, 8).amax(dim=2)
    wrong = (best != actual["maxima"]) & ~expected["maxima"].isnan()
    if wrong.any():
        faults.append(f"maxima: {int(wrong.sum())} are not the maximum of their block's scores")
    return faults


def _supports(capability: Capability, problem: Problem) -> str | None:
    if capability < (9, 0):
        return f"sm_{capability[0]}{capability[1]} has no packed bfloat16 product; sm_90 or newer has"
    if problem["heads"] < _LEAST_HEADS:
        return "fewer than 8 heads do not fill a tensor-core tile"
    return None


def cost(problem: Problem) -> Cost:
    """Keys once per request, scores and maxima once; one multiply-add per channel, head, row and visible position."""
    moved, products = 0.0, 0.0
    for newest, rows in zip(problem["contexts"], problem["rows"], strict=True):
        pairs = sum(scene.consecutive_lengths(newest, rows, problem["ratio"]))
        moved += newest * layout.INDEX_KEY.entry_bytes + pairs * (4 + 4 / 8)
        moved += rows * problem["heads"] * layout.INDEX_DIM * 2
        products += pairs * problem["heads"] * layout.INDEX_DIM
    return Cost(moved, 2 * products)


_SIGNATURE = {
    "p_query": "*bf16",
    "p_weight": "*bf16",
    "p_request": "*i64",
    "p_table": "*i32",
    "p_length": "*i32",
    "p_start": "*i32",
    "p_keys": "*u8",
    "p_score": "*fp32",
    "p_maximum": "*fp32",
    "groups": "i32",
    "table_stride": "i32",
    "score_stride": "i32",
    "maximum_stride": "i32",
}


def _compile_case(
    name: str,
    group_rows: int,
    groups: int,
    *,
    ragged: bool = False,
    ratio: int = 1,
    targets: tuple[int, ...] = ALL,
    on_sm_120: int | None = None,
    stack: Mapping[int, int] | None = None,
) -> CompileCase:
    config = kernel.CONFIGS[group_rows]
    return CompileCase(
        name,
        kernel.index_scores_kernel,
        _SIGNATURE,
        {
            "GROUP_ROWS": group_rows,
            "ROWS_A": config.parts[0],
            "ROWS_B": config.parts[1],
            "ROWS_MAX": 1 << (group_rows - 1).bit_length(),
            "GROUPS": groups,
            "HEADS": scene.HEADS,
            "RATIO": ratio,
            "RAGGED": ragged,
            "T": config.tile,
        },
        {"num_warps": config.warps, "num_stages": config.stages},
        divisible=("table_stride", "score_stride", "maximum_stride"),
        targets=targets,
        programs=config.programs,
        fewer={} if on_sm_120 is None else {120: on_sm_120},
        stack=stack or {},
    )


OP = Op(
    name="index_scores",
    summary="Index scores of a full scan (decode, verify, prefill) with block maxima",
    formula="score[t, s] = sum over h of relu(q[t, h] . k[s]) * w[t, h];  maximum[t, b] = max of score[t, 8b .. 8b + 7]",
    problems=PROBLEMS,
    make_inputs=make_inputs,
    reference=reference.index_scores,
    kernel=kernel.index_scores,
    tolerances={"scores": Tolerance(relative=_TOLERANCE), "maxima": Tolerance(relative=_TOLERANCE)},
    cost=cost,
    supports=_supports,
    replaces=(
        "kernels.ops.attention.dsv4.fp4_indexer.fp4_index_logits_paged",
        "kernels.ops.attention.dsv4.candidate_blocks.amax8_varlen",
        "srt.layers.attention.dsv4.v41_indexer.scoring.prefill_requests",
    ),
    stocks=(
        Stock("fp4_index_logits_paged (Triton)", stock.prepare_paged),
        Stock("fp4_index_logits_paged + amax8_varlen", stock.prepare_paged_with_maxima),
        Stock("prefill_requests (torch)", stock.prepare_requests, capturable=False),
    ),
    compile_cases=(
        _compile_case("decode 1", 1, 1),
        _compile_case("decode 64", 1, 64, ratio=2),
        # Tuned for sm_90, where nothing spills; other architectures keep some group state on the stack, outside the loop, and sm_120 has
        # less than half the shared memory.
        _compile_case("verify 8 x 2", 2, 8, targets=SOME, on_sm_120=2),
        _compile_case("verify 8 x 4", 4, 8, targets=SOME),
        _compile_case("verify 8 x 6", 6, 8, on_sm_120=1, stack={100: 64, 103: 64}),
        *(
            _compile_case(
                f"prefill of {groups} groups",
                8,
                groups,
                ragged=True,
                targets=targets,
                on_sm_120=1,
                stack={100: 256, 103: 256, 120: 64},
            )
            for groups, targets in zip(kernel.RAGGED_GROUPS, (SOME, ALL), strict=True)
        ),
    ),
    compare=compare,
)
