"""Sparse decode: formula, V4.1's shapes, inputs, cost and compile cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels import codec, device, layout, rotary
from dsv41_kernels.op import Capability, CompileCase, Cost, Inputs, Op, Problem, Tolerance
from dsv41_kernels.ops.sparse_decode import kernel, reference, stock

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMULA = """
entries of row t   j in window(t) (<= 128) and selection(t) (<= 512), K = V
s[h,j]   = q[t,h] . k[j] * 512^-0.5
o[t,h]   = sum_j e^(s[h,j]) k[j] / (sum_j e^(s[h,j]) + e^(sink[h]))
out[t,h] = o[t,h] with channels 448..511 rotated back by the angle of position t
"""

WINDOW = 128
SELECTED = 512
LAYOUT_PAIRS = {"v4": ("v4", "v4"), "v41": ("v41", "v41"), "fp4": ("v41", "v41_fp4")}
"""What one engine configuration stores in the window pool and in the compressed pool."""
_UNIQUE_PAGES = 4
_HOLES = 0.05
"""Share of indices that are -1 within a ragged row's length."""


def _random_cache(entry: layout.EntryLayout, pages: int, slots: int, generator: torch.Generator) -> torch.Tensor:
    """Random entries; beyond a few pages the pages repeat, because only their bytes' randomness matters."""
    unique = min(pages, _UNIQUE_PAGES)
    values = torch.randn(unique * slots, entry.channels, generator=generator)
    cache = layout.empty_cache(entry, unique, slots)
    layout.write(entry, cache, slots, torch.arange(unique * slots), codec.round_fp4_entry(values))
    return cache[torch.arange(pages) % unique]


def _lengths(fill: str, rows: int, width: int, generator: torch.Generator) -> torch.Tensor:
    if fill == "full":
        return torch.full((rows,), width, dtype=torch.int32)
    if fill == "empty":
        return torch.zeros(rows, dtype=torch.int32)
    return torch.randint(0, width + 1, (rows,), dtype=torch.int32, generator=generator)


def make_inputs(problem: Problem, target: torch.device, seed: int) -> Inputs:
    """Random query rows over random caches. Rows of one request share its window; every row has its own selection.

    `fill`: "full" (all entries count), "ragged" (random lengths, -1 beyond and some -1 within), "empty", or "invalid" (full
    length, every index -1).
    """
    generator = torch.Generator().manual_seed(seed)
    rows, heads, context = problem["rows"], problem["heads"], problem["context"]
    window, selected = problem.sizes.get("window", WINDOW), problem.sizes.get("selected", SELECTED)
    fill, rows_per_request = problem.sizes.get("fill", "full"), problem.sizes.get("rows_per_request", 1)
    names = LAYOUT_PAIRS[problem["layouts"]]
    requests = -(-max(rows, 1) // rows_per_request)
    window_slots, selected_slots = problem.sizes.get("window_slots", 256), problem["slots"]
    span = window + rows_per_request
    window_pages = layout.pages_for(requests * span, window_slots)
    row = torch.arange(rows)
    last = row // rows_per_request * span + row % rows_per_request
    window_index = (last[:, None] + torch.arange(window)[None, :]).to(torch.int32)
    selected_index = torch.randint(0, context, (rows, selected), generator=generator).sort(dim=1).values.to(torch.int32)
    window_length, selected_length = (_lengths(fill, rows, width, generator) for width in (window, selected))
    for index, length in ((window_index, window_length), (selected_index, selected_length)):
        if fill == "invalid":
            index.fill_(-1)
        if fill == "ragged":
            index[torch.arange(index.shape[1])[None, :] >= length[:, None]] = -1
            index[torch.rand(index.shape, generator=generator) < _HOLES] = -1
    inputs: dict[str, Any] = {
        "q": (torch.randn(rows, heads, layout.HEAD_DIM, generator=generator) * 2).to(torch.bfloat16),
        "window_cache": _random_cache(layout.LAYOUTS[names[0]], window_pages, window_slots, generator),
        "window_index": window_index,
        "window_length": window_length,
        "selected_cache": _random_cache(
            layout.LAYOUTS[names[1]], layout.pages_for(context, selected_slots), selected_slots, generator
        ),
        "selected_index": selected_index,
        "selected_length": selected_length,
        "sink": torch.randn(heads, generator=generator),
        "table": rotary.frequency_table(4096),
        "positions": torch.randint(0, 4096, (rows,), generator=generator),
    }
    if selected == 0:
        inputs |= {"selected_cache": None, "selected_index": None, "selected_length": None}
    if problem.sizes.get("sink") == "none":
        inputs["sink"].fill_(-torch.inf)
    if problem.sizes.get("rope") == "none":
        inputs |= {"table": None, "positions": None}
    moved = {name: value.to(target) if value is not None else None for name, value in inputs.items()}
    return {
        **moved,
        "window_layout": names[0],
        "window_slots": window_slots,
        "selected_layout": names[1],
        "selected_slots": selected_slots,
        "scale": layout.HEAD_DIM**-0.5,
    }


def cost(problem: Problem) -> Cost:
    """Entries once per row (the window once per request), queries, outputs and indices; two products of 512 channels."""
    rows, heads = problem["rows"], problem["heads"]
    window, selected = problem.sizes.get("window", WINDOW), problem.sizes.get("selected", SELECTED)
    rows_per_request = problem.sizes.get("rows_per_request", 1)
    names = LAYOUT_PAIRS[problem["layouts"]]
    window_entries = rows // rows_per_request * (window + rows_per_request - 1)
    entries = window_entries * layout.LAYOUTS[names[0]].entry_bytes
    entries += rows * selected * layout.LAYOUTS[names[1]].entry_bytes
    queries = 2 * rows * heads * layout.HEAD_DIM * 2
    return Cost(entries + queries + rows * (window + selected) * 4, rows * heads * (window + selected) * 512 * 2 * 2)


def supports(capability: Capability, problem: Problem) -> str | None:
    """Packed bfloat16 products and programmatic dependent launch need compute capability 9.0 or newer."""
    del problem
    if capability < (9, 0):
        return (
            f"compute capability {capability[0]}.{capability[1]} has no packed bfloat16 product; 9.0 or newer is needed"
        )
    return None


def _compile_case(
    name: str, pair: str, heads: int, slots: int, rows: int = 1, processors: int = 132, **limits: Any
) -> CompileCase:
    names = LAYOUT_PAIRS[pair]
    cut = kernel.plan(rows, heads, WINDOW + SELECTED, processors)
    constants: Mapping[str, Any] = {
        "WINDOW_LAYOUT": device.TAGS[names[0]],
        "WINDOW_SLOTS": 256,
        "WINDOW_PAGE_BYTES": layout.LAYOUTS[names[0]].page_bytes(256),
        "SELECTED_LAYOUT": device.TAGS[names[1]],
        "SELECTED_SLOTS": slots,
        "SELECTED_PAGE_BYTES": layout.LAYOUTS[names[1]].page_bytes(slots),
        "H": kernel.HEAD_BLOCK,
        "T": cut.tile,
        "OVERLAP": True,
    }
    caches, indices, floats = ("p_window", "p_selected"), ("p_window_", "p_selected_"), ("p_acc", "p_max", "p_sum")
    signature = {
        "p_q": "*bf16",
        **dict.fromkeys(caches, "*u8"),
        **{f"{prefix}{part}": "*i32" for prefix in indices for part in ("index", "length")},
        **dict.fromkeys(floats, "*fp32"),
        **dict.fromkeys(("q_stride", "heads", "window_width", "selected_width", "tiles_per_split"), "i32"),
        "scale": "fp32",
    }
    return CompileCase(
        name,
        kernel.attend_kernel,
        signature,
        constants,
        {"num_warps": cut.warps, "num_stages": 1},
        divisible=("q_stride", "window_width", "selected_width"),
        # The query's fragments alone take 128 registers. Beyond one wave a launch counts on two small tiles a multiprocessor (`plan`).
        programs=1 if cut.warps == kernel.WIDE_WARPS else 2,
        **limits,
    )


def _combine_case() -> CompileCase:
    signature = {
        **dict.fromkeys(("p_acc", "p_max", "p_sum", "p_sink", "p_table"), "*fp32"),
        "p_positions": "*i64",
        "p_out": "*bf16",
        "out_stride": "i32",
        "heads": "i32",
        "splits": "i32",
    }
    return CompileCase(
        "combine",
        kernel.combine_kernel,
        signature,
        {"SPLITS": 32, "INVERSE_ROPE": True, "OVERLAP": True},
        {"num_warps": 4, "launch_pdl": True},
    )


def _small(name: str, **sizes: Any) -> Problem:
    base = {"rows": 2, "heads": 16, "layouts": "v4", "slots": 64, "window_slots": 64, "context": 200}
    return Problem(name, "correctness", {**base, "window": 40, "selected": 72, "fill": "ragged", **sizes})


def _production(name: str, rows: int, heads: int, layouts: str = "v4", **sizes: Any) -> Problem:
    base = {"rows": rows, "heads": heads, "layouts": layouts, "slots": 128, "context": 200_000}
    return Problem(name, "production", {**base, **sizes})


OP = Op(
    name="sparse_decode",
    summary="Sparse MLA decode and verify over window and selected entries, sink and inverse RoPE included",
    formula=FORMULA,
    problems=(
        _small("v4"),
        _small("v41", layouts="v41"),
        _small("fp4", layouts="fp4"),
        _small("8-heads", heads=8),
        _small("64-heads", heads=64, rows=1),
        _small("verify", rows=6, rows_per_request=6, window=33, selected=31),
        _small("window-only", selected=0),
        _small("no-sink", sink="none", rope="none"),
        Problem("no-rows", "corner", {**_small("").sizes, "rows": 0}),
        Problem("empty", "corner", {**_small("").sizes, "fill": "empty"}),
        Problem("empty-no-sink", "corner", {**_small("").sizes, "fill": "empty", "sink": "none"}),
        Problem("all-invalid", "corner", {**_small("").sizes, "fill": "invalid"}),
        _production("decode-1x16", 1, 16),
        _production("decode-8x16", 8, 16),
        _production("decode-32x16", 32, 16),
        _production("decode-64x16", 64, 16),
        _production("verify-6x16", 6, 16, rows_per_request=6),
        _production("verify-48x16", 48, 16, rows_per_request=6),
        _production("decode-8x8", 8, 8),
        _production("decode-8x32", 8, 32),
        _production("decode-8x64", 8, 64),
        _production("decode-1x16-fp4", 1, 16, "fp4"),
        _production("decode-8x16-fp4", 8, 16, "fp4"),
        _production("decode-64x16-fp4", 64, 16, "fp4"),
        _production("verify-6x16-fp4", 6, 16, "fp4", rows_per_request=6),
        _production("window-only-1x16", 1, 16, selected=0),
        _production("window-only-8x16", 8, 16, selected=0),
        _production("window-only-64x16", 64, 16, selected=0),
        _production("window-only-verify-6x16", 6, 16, selected=0, rows_per_request=6),
    ),
    make_inputs=make_inputs,
    reference=reference.sparse_decode,
    kernel=kernel.sparse_decode,
    # bfloat16 probabilities and a bfloat16 result: 2^-9 each, rounded at random.
    tolerances={"out": Tolerance(relative=3e-3)},
    cost=cost,
    supports=supports,
    replaces=("srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend._forward_attention",),
    stocks=stock.STOCKS,
    compile_cases=(
        # A few bytes of stack on the architectures never measured here; sm_120 has room for one tile of V4.
        _compile_case("v4-16-heads", "v4", 16, 128, fewer={120: 1}, stack={100: 48, 103: 48, 120: 48}),
        _compile_case("v4-16-heads-wide", "v4", 16, 128, rows=8),
        _compile_case("v41-16-heads", "v41", 16, 128),
        _compile_case("fp4-16-heads", "fp4", 16, 256),
        _compile_case("fp4-16-heads-wide", "fp4", 16, 256, rows=8),
        _combine_case(),
    ),
)
