"""Index keys: formula, V4.1's shapes, inputs, cost and compile cases."""

from __future__ import annotations

from typing import Any

import torch

from dsv41_kernels import check, layout, rotary
from dsv41_kernels.op import ALL, SOME, Capability, CompileCase, Cost, Inputs, Op, Outputs, Problem, Tolerance
from dsv41_kernels.ops.index_keys import kernel, reference, stock

FORMULA = """
k = RMSNorm(bf16(latent W^T))          latent before its rotation
key = fp4(bf16(rotate_tail(k, position of the entry)))   ->  index slot `location`, 64 B codes + 4 B scales
"""

_DECODED = Tolerance(relative=2e-2)
"""Of the decoded keys: a bfloat16 rounding that falls the other way than in float64 moves a code by one step."""


def make_inputs(problem: Problem, target: torch.device, seed: int) -> Inputs:
    """Random latents; `skipped` of the rows complete no entry or are padding and hold NaN latents."""
    generator = torch.Generator().manual_seed(seed)
    rows, ratio, slots = problem["rows"], problem["ratio"], layout.INDEX_SLOTS
    latent = torch.randn(rows, layout.HEAD_DIM, generator=generator).bfloat16()
    location = 1 + torch.randperm(rows, generator=generator)
    skipped = torch.rand(rows, generator=generator) < problem.sizes.get("skipped", 0.0)
    location[skipped] = -torch.randint(0, 2, (int(skipped.sum()),), generator=generator)
    latent[skipped] = torch.nan
    inputs: dict[str, Any] = {
        "latent": latent,
        "weight": (torch.randn(layout.INDEX_DIM, layout.HEAD_DIM, generator=generator) / 16).bfloat16(),
        "norm_weight": (1 + 0.1 * torch.randn(layout.INDEX_DIM, generator=generator)).bfloat16(),
        "positions": torch.randint(0, 4096, (rows,), generator=generator),
        "location": location,
        "table": rotary.frequency_table(4096),
        "cache": layout.empty_cache(layout.INDEX_KEY, layout.pages_for(rows + 1, slots), slots),
    }
    if problem.sizes.get("projected"):
        inputs |= {"latent": latent[:, : layout.INDEX_DIM].contiguous(), "weight": None}
    moved = {name: value if value is None else value.to(target) for name, value in inputs.items()}
    return {**moved, "eps": 1e-6, "ratio": ratio, "slots": slots}


def compare(actual: Outputs, expected: Outputs) -> list[str]:
    """Slots that the reference left alone are untouched, the others decode to nearly the same keys."""
    slots = layout.INDEX_SLOTS
    everything = torch.arange(expected["cache"].shape[0] * slots, device=expected["cache"].device)
    entry = layout.INDEX_KEY
    raw = {
        name: layout.read_bytes(entry, out["cache"], slots, everything)
        for name, out in (("a", actual), ("e", expected))
    }
    written = (raw["e"] != layout.FILL).any(dim=1)
    found = (
        [] if torch.equal(raw["a"][~written], raw["e"][~written]) else ["cache: a slot that no row owns was written"]
    )
    keys = [layout.read(entry, out["cache"], slots, everything[written]) for out in (actual, expected)]
    return found + check.faults({"keys": keys[0]}, {"keys": keys[1]}, {"keys": _DECODED})


def cost(problem: Problem) -> Cost:
    """Latents, weight and keys once."""
    stored = problem["rows"] * (1 - problem.sizes.get("skipped", 0.0))
    return Cost(stored * (1024 + 68) + 128 * 1024, stored * 2 * 512 * 128)


def supports(capability: Capability, problem: Problem) -> str | None:
    """Any GPU with bfloat16 tensor cores: compute capability 8.0 or newer."""
    del problem
    if capability < (8, 0):
        return (
            f"compute capability {capability[0]}.{capability[1]} has no bfloat16 tensor cores; 8.0 or newer is needed"
        )
    return None


def _compile_case(name: str, rows: int, depth: int, *, project: bool = True) -> CompileCase:
    signature = {
        **dict.fromkeys(("p_latent", "p_weight", "p_norm"), "*bf16"),
        **dict.fromkeys(("p_positions", "p_location"), "*i64"),
        "p_table": "*fp32",
        "p_cache": "*u8",
        "rows": "i32",
        "eps": "fp32",
    }
    constants = {"RATIO": 2, "SLOTS": layout.INDEX_SLOTS, "PROJECT": project, "R": rows, "K": depth}
    options = {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": False}
    targets = ALL if project else SOME
    return CompileCase(name, kernel.index_keys_kernel, signature, constants, options, targets=targets)


OP = Op(
    name="index_keys",
    summary="Index keys from latents: projection, RMSNorm, RoPE, FP4 and cache write in one launch",
    formula=FORMULA,
    problems=(
        Problem("1-row", "correctness", {"rows": 1, "ratio": 1}),
        Problem("18-rows-c2", "correctness", {"rows": 18, "ratio": 2, "skipped": 0.5}),
        Problem("300-rows-c2", "correctness", {"rows": 300, "ratio": 2, "skipped": 0.5}),
        Problem("projected", "correctness", {"rows": 18, "ratio": 2, "skipped": 0.5, "projected": True}),
        Problem("no-rows", "corner", {"rows": 0, "ratio": 1}),
        Problem("all-skipped", "corner", {"rows": 5, "ratio": 2, "skipped": 1.0}),
        Problem("decode-1-c1", "production", {"rows": 1, "ratio": 1}),
        Problem("decode-64-c1", "production", {"rows": 64, "ratio": 1}),
        Problem("verify-96-c2", "production", {"rows": 96, "ratio": 2, "skipped": 0.5}),
        Problem("extend-8192-c1", "production", {"rows": 8192, "ratio": 1}),
        Problem("extend-8192-c2", "production", {"rows": 8192, "ratio": 2, "skipped": 0.5}),
    ),
    make_inputs=make_inputs,
    reference=reference.index_keys,
    kernel=kernel.index_keys,
    tolerances={},
    compare=compare,
    cost=cost,
    supports=supports,
    replaces=("kernels.ops.attention.dsv4.fp4_indexer_rope.index_k_norm_rope_pack_store",),
    stocks=stock.STOCKS,
    compile_cases=(
        _compile_case("few-rows", 16, 256),
        _compile_case("many-rows", 64, 128),
        _compile_case("few-rows-projected", 16, 256, project=False),
        _compile_case("many-rows-projected", 64, 128, project=False),
    ),
)
