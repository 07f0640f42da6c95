"""Packing: formula, the pools of V4.1, inputs, cost and compile cases; `unpack` shares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels.op import EXACT, Capability, CompileCase, Cost, Inputs, Op, Problem
from dsv41_kernels.ops.pack import kernel, reference, stock

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMULA = """
block = concat over pools p of concat over k of pool_p[indices[k]]        bytes, nothing is converted
"""

# What one page of 256 tokens is in each pool (V4 layout, 64 index keys a page): get_contiguous_buf_infos and
# get_state_buf_infos of DeepSeekV4TokenToKVPool in SGLang 0.5.23. Ratio 2 at the sources 2, 8 and 14, ratio 1 at 20.
MAIN = (74_880, 74_880, 74_880, 149_760)
INDEX = (8_704, 8_704, 8_704, 17_408)
WINDOW = (149_760,) * 40
KV_V41_FP4 = (36_864, 36_864, 36_864, 73_728, *INDEX)


def make_inputs(problem: Problem, target: torch.device, seed: int) -> Inputs:
    """Random bytes in pools three times as large as what is taken, at indices in random order."""
    generator = torch.Generator().manual_seed(seed)
    items, sizes = problem["items"], problem["item_bytes"]
    capacity = 3 * items + 1
    pools = [torch.randint(0, 256, (capacity, size), generator=generator, dtype=torch.uint8) for size in sizes]
    spare = problem.sizes.get("spare", 0)
    return {
        "pools": kernel.Pools.of([pool.to(target) for pool in pools]),
        "indices": torch.randperm(capacity, generator=generator)[:items].int().to(target),
        "block": torch.randint(0, 256, (items * sum(sizes) + spare,), generator=generator, dtype=torch.uint8).to(
            target
        ),
    }


def cost(problem: Problem) -> Cost:
    """Every byte read once and written once."""
    return Cost(2 * problem["items"] * sum(problem["item_bytes"]), 0)


def supports(_capability: Capability, _problem: Problem) -> str | None:
    """Any GPU: bytes are copied."""
    return None


def compile_cases(*, scatter: bool) -> tuple[CompileCase, ...]:
    """The one specialisation of a direction."""
    signature = {"p_table": "*i64", "p_indices": "*i32", "p_block": "*i64", "pools": "i32", "items": "i32"}
    constants = {"SCATTER": scatter, "TILE": kernel.TILE_WORDS}
    return (CompileCase("pages", kernel.copy_items_kernel, signature, constants, {"num_warps": 4}, programs=8),)


def problems(small: Sequence[int] = (64, 16, 9_216)) -> tuple[Problem, ...]:
    """The cases of both directions."""
    return (
        Problem("one-item", "correctness", {"items": 1, "item_bytes": (32,)}),
        Problem("three-pools", "correctness", {"items": 7, "item_bytes": tuple(small)}),
        Problem("longer-than-a-tile", "correctness", {"items": 2, "item_bytes": (16, 8 * kernel.TILE_WORDS + 48)}),
        Problem("page-of-v4", "correctness", {"items": 1, "item_bytes": (*MAIN[2:], *INDEX[2:])}),
        Problem("no-items", "corner", {"items": 0, "item_bytes": (64, 16), "spare": 64}),
        Problem("spare-block", "corner", {"items": 3, "item_bytes": (48, 16), "spare": 40}),
        Problem("kv-4k", "production", {"items": 16, "item_bytes": MAIN + INDEX}),
        Problem("kv-32k", "production", {"items": 128, "item_bytes": MAIN + INDEX}),
        Problem("kv-32k-v41-fp4", "production", {"items": 128, "item_bytes": KV_V41_FP4}),
        Problem("window", "production", {"items": 1, "item_bytes": WINDOW}),
    )


OP = Op(
    name="pack",
    summary="Pages of many pools gathered into one block; beside it torch's way, as the engine packs nothing",
    formula=FORMULA,
    problems=problems(),
    make_inputs=make_inputs,
    reference=reference.pack,
    kernel=kernel.pack,
    tolerances={"block": EXACT},
    cost=cost,
    supports=supports,
    replaces=("srt.disaggregation.nixl.conn.NixlKVManager.send_kvcache",),
    called_by=("dsv41_serving.sglang_plugin.handoff.pools.GpuCopier",),
    stocks=stock.PACK,
    compile_cases=compile_cases(scatter=False),
)
