"""Compressors: formula, V4.1's shapes, inputs, cost and compile cases."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from dsv41_kernels import check, device, layout, rotary
from dsv41_kernels.op import ALL, EXACT, SOME, Capability, CompileCase, Cost, Inputs, Op, Outputs, Problem, Tolerance
from dsv41_kernels.ops.compress import kernel, reference, stock

FORMULA = """
ratio 2, odd position p:  w = softmax([score(p-1), score(p)]) per channel,  x = w0 kv(p-1) + w1 kv(p)
ratio 1:                  x = kv(p)
latent = RMSNorm(bf16(x));  entry = fp4(bf16(rotate_tail(latent, p - (ratio - 1))))  ->  cache slot location // ratio
"""

VERIFY_ROWS = 6
VERIFY_RING = 8
_LATENT = Tolerance(relative=3e-3)
_FLIPPED_BYTES = 0.01
"""A bfloat16 rounding of the latent may fall the other way than in float64 and move FP4 codes: share of bytes allowed."""


def _rows(problem: Problem, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Positions and requests of the rows, and the row count of each request."""
    requests, mode = problem["requests"], problem["mode"]
    if mode == "extend":
        total = problem["rows"]
        bounds = (
            torch.randint(0, total + 1, (requests - 1,), generator=generator).sort().values if requests > 1 else None
        )
        edges = [0, *(bounds.tolist() if bounds is not None else []), total]
        counts = [after - before for before, after in itertools.pairwise(edges)]
    else:
        counts = [VERIFY_ROWS if mode == "verify" else 1] * requests
    first = torch.randint(0, 2000, (requests,), generator=generator)
    positions = [first[i] + torch.arange(count) for i, count in enumerate(counts)]
    owners = [torch.full((count,), i + 1) for i, count in enumerate(counts)]
    nothing = torch.zeros(0, dtype=torch.int64)
    return torch.cat([*positions, nothing]), torch.cat([*owners, nothing]), counts


def make_inputs(problem: Problem, target: torch.device, seed: int) -> Inputs:
    """Random projections of a decode, verify or extend batch; `padding` rows at the end have location 0."""
    generator = torch.Generator().manual_seed(seed)
    ratio, mode = problem["ratio"], problem["mode"]
    positions, request, counts = _rows(problem, generator)
    padding = problem.sizes.get("padding", 0)
    # Each request's tokens lie in a page-aligned run of their own, so a slot's parity is its position's.
    span = (max(counts, default=0) + 4) // 2 * 2
    base = torch.tensor([2 + i * span for i in range(len(counts))], dtype=torch.int64)
    run = torch.cat(
        [torch.arange(count) + int(positions[sum(counts[:i])]) % 2 for i, count in enumerate(counts) if count]
        + [base[:0]]
    )
    location = base[request - 1] + run
    if padding:
        zeros = torch.zeros(padding, dtype=torch.int64)
        positions, request, location = (torch.cat([part, zeros]) for part in (positions, request, location))
    rows, ring_size = len(positions), VERIFY_RING if mode == "verify" else problem.sizes.get("ring", 2)
    fused = torch.randn(rows, 1024, generator=generator) * torch.tensor([1.0, 3.0]).repeat_interleave(512)
    entry = layout.LAYOUTS[problem["layout"]]
    slots = problem.sizes.get("slots", layout.FULL_PAGE // ratio)
    pages = layout.pages_for((2 + len(counts) * span) // ratio + 1, slots)
    starts = torch.tensor([sum(counts[:i]) for i in range(len(counts))], dtype=torch.int32)
    inputs: dict[str, torch.Tensor] = {
        "norm_weight": (1 + 0.1 * torch.randn(512, generator=generator)).bfloat16(),
        "positions": positions,
        "request": request,
        "location": location,
        "table": rotary.frequency_table(2000 + max(counts, default=0) + 8),
        "cache": layout.empty_cache(entry, pages, slots),
    }
    moved: dict[str, Any] = {name: value.to(target) for name, value in inputs.items()}
    fused = fused.to(target)
    pair = ratio == layout.SOURCE_RATIOS[0]
    extend = mode == "extend"
    return {
        **moved,
        "kv": fused[:, :512] if pair else fused[:, :512].bfloat16(),
        "score": fused[:, 512:] if pair else None,
        "ring": torch.randn((len(counts) + 1) * ring_size, 1024, generator=generator).to(target) if pair else None,
        "ring_size": ring_size,
        "eps": 1e-6,
        "start": starts.to(target) if extend else None,
        "length": torch.tensor(counts, dtype=torch.int32).to(target) if extend else None,
        "layout": problem["layout"],
        "slots": slots,
    }


def compare(actual: Outputs, expected: Outputs) -> list[str]:
    """Latent within its tolerance, ring exact, cache bytes equal but for the few codes that a latent's rounding moves."""
    tolerances = {"latent": _LATENT} | ({"ring": EXACT} if "ring" in expected else {})
    found = check.faults(actual, expected, tolerances)
    wrong = (actual["cache"] != expected["cache"]).float()
    written = (expected["cache"] != layout.FILL).float().sum()
    if wrong.sum() > _FLIPPED_BYTES * written:
        found.append(f"cache: {int(wrong.sum())} bytes differ of {int(written)} written")
    return found


def _completed(problem: Problem) -> tuple[int, int]:
    rows = problem["rows"] if problem["mode"] == "extend" else problem["requests"]
    rows *= VERIFY_ROWS if problem["mode"] == "verify" else 1
    return rows, rows if problem["ratio"] == 1 else rows // 2


def cost(problem: Problem) -> Cost:
    """Projections once, latent and entry of completed rows once, ring rows once."""
    rows, entries = _completed(problem)
    projected = rows * 512 * (2 if problem["ratio"] == 1 else 8)
    ring = 0 if problem["ratio"] == 1 else problem["requests"] * 4096
    entry = layout.LAYOUTS[problem["layout"]].entry_bytes
    return Cost(projected + ring + entries * (1024 + entry), rows * 512 * 30)


def supports(capability: Capability, problem: Problem) -> str | None:
    """Everything with E4M3 decoding: compute capability 8.9 or newer."""
    del problem
    if capability < (8, 9):
        return f"compute capability {capability[0]}.{capability[1]} has no E4M3 conversion; 8.9 or newer is needed"
    return None


def _compile_case(name: str, ratio: int, entry: layout.EntryLayout, *, extend: bool, rows: int = 1) -> CompileCase:
    kind = "*bf16" if ratio == 1 else "*fp32"
    signature = {
        **dict.fromkeys(("p_kv", "p_score", "p_ring"), kind),
        "p_norm": "*bf16",
        **dict.fromkeys(("p_positions", "p_request", "p_location"), "*i64"),
        **dict.fromkeys(("p_start", "p_length"), "*i32"),
        "p_table": "*fp32",
        "p_latent": "*bf16",
        "p_cache": "*u8",
        "kv_stride": "i32",
        "requests": "i32",
        "eps": "fp32",
    }
    slots = layout.FULL_PAGE // ratio
    constants = {
        "RATIO": ratio,
        "EXTEND": extend,
        "RING": VERIFY_RING,
        "LAYOUT": device.TAGS[entry.name],
        "SLOTS": slots,
        "PAGE_BYTES": entry.page_bytes(slots),
    }
    options = {"num_warps": kernel.warps(rows), "enable_fp_fusion": False}
    # Rows in flight hide the latency of a row, which is one chain.
    return CompileCase(
        name,
        kernel.compress_kernel,
        signature,
        constants,
        options,
        targets=ALL if rows == 1 else SOME,
        divisible=("kv_stride",),
        programs=8,
    )


def _case(kind: Any, mode: str, ratio: int, entry: str, requests: int, **sizes: Any) -> Problem:
    count = f"{sizes['rows']}" if "rows" in sizes else f"{requests}"
    name = f"{mode}-c{ratio}-{count}-{entry}" + (f"-{sizes['padding']}-padded" if "padding" in sizes else "")
    base = {"mode": mode, "ratio": ratio, "layout": entry, "requests": requests}
    return Problem(name, kind, {**base, **sizes})


OP = Op(
    name="compress",
    summary="Compressors C1 and C2: pair pooling, RMSNorm, RoPE, FP4 rounding and cache write in one launch",
    formula=FORMULA,
    problems=(
        *(_case("correctness", "decode", ratio, entry, 4) for ratio in (1, 2) for entry in ("v4", "v41", "v41_fp4")),
        *(_case("correctness", "verify", ratio, "v4", 2) for ratio in (1, 2)),
        *(_case("correctness", "extend", ratio, "v41_fp4", 3, rows=25) for ratio in (1, 2)),
        _case("correctness", "extend", 2, "v4", 1, rows=7, ring=8),
        _case("corner", "decode", 2, "v4", 3, padding=3),
        _case("corner", "extend", 2, "v4", 4, rows=3, padding=2),
        _case("corner", "extend", 2, "v4", 1, rows=1),
        _case("corner", "decode", 2, "v4", 0),
        _case("corner", "decode", 1, "v4", 0, padding=2),
        *(_case("production", "decode", ratio, "v4", rows) for ratio in (1, 2) for rows in (1, 64)),
        *(_case("production", "verify", ratio, "v4", requests) for ratio in (1, 2) for requests in (1, 16)),
        *(_case("production", "extend", ratio, "v4", 4, rows=8192, ring=8) for ratio in (1, 2)),
        _case("production", "verify", 2, "v41_fp4", 16),
        _case("production", "extend", 2, "v41_fp4", 4, rows=8192, ring=8),
    ),
    make_inputs=make_inputs,
    reference=reference.compress,
    kernel=kernel.compress,
    tolerances={"latent": _LATENT},
    compare=compare,
    cost=cost,
    supports=supports,
    replaces=(
        "kernels.ops.attention.dsv4.low_ratio_compress.c1_decode_norm_rope_store",
        "kernels.ops.attention.dsv4.low_ratio_compress.c2_decode_norm_rope_store",
        "kernels.ops.attention.dsv4.low_ratio_compress.c2_prefill_norm_rope_store",
    ),
    stocks=stock.STOCKS,
    compile_cases=(
        _compile_case("c1-v4", 1, layout.V4, extend=False),
        _compile_case("c2-v4", 2, layout.V4, extend=False),
        _compile_case("c2-fp4", 2, layout.V41_FP4, extend=False),
        _compile_case("c2-extend-v4", 2, layout.V4, extend=True),
        _compile_case("c1-v4-many-rows", 1, layout.V4, extend=False, rows=kernel.MANY_ROWS),
        _compile_case("c2-extend-v4-many-rows", 2, layout.V4, extend=True, rows=kernel.MANY_ROWS),
    ),
)
