"""The engine's decode attention for the same tensors: FlashMLA padded to 64 heads (what sm_90 runs) and its Triton decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv41_kernels import layout
from dsv41_kernels.engine import import_engine
from dsv41_kernels.op import Inputs, Outputs, Problem, Stock, StockUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_FLASHMLA_HEADS = 64


def _view(cache: torch.Tensor, name: str, slots: int) -> torch.Tensor:
    """The engine's view of a pool: [pages, slots, 1, entry bytes] over the padded pages."""
    entry = layout.LAYOUTS[name].entry_bytes
    return cache[:, : slots * entry].unflatten(1, (slots, 1, entry))  # type: ignore[no-untyped-call,no-any-return]


def _arguments(inputs: Inputs) -> dict[str, Any]:
    arguments = {
        "k_cache": _view(inputs["window_cache"], inputs["window_layout"], inputs["window_slots"]),
        "head_dim_v": layout.HEAD_DIM,
        "softmax_scale": inputs["scale"],
        "indices": inputs["window_index"].unsqueeze(1),
        "topk_length": inputs["window_length"],
    }
    if inputs["selected_cache"] is not None:
        arguments |= {
            "extra_k_cache": _view(inputs["selected_cache"], inputs["selected_layout"], inputs["selected_slots"]),
            "extra_indices_in_kvcache": inputs["selected_index"].unsqueeze(1),
            "extra_topk_length": inputs["selected_length"],
        }
    return arguments


def _require_v4(inputs: Inputs, path: str) -> None:
    names = {inputs["window_layout"], inputs["selected_layout"]}
    if names != {"v4"}:
        raise StockUnavailableError(f"{path} reads the V4 layout only on this GPU, not {' and '.join(sorted(names))}")


def prepare_flashmla(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """FlashMLA on queries padded to 64 heads, as the backend does on sm_90 (the padding itself is not timed).

    The output is compared before the inverse rotation, which the engine does in a kernel of its own (not timed either).
    """
    _require_v4(inputs, "FlashMLA")
    flash_mla = import_engine("flash_mla")
    rows, heads = problem["rows"], problem["heads"]
    q = inputs["q"].new_zeros(rows, 1, _FLASHMLA_HEADS, layout.HEAD_DIM)
    q[:, 0, :heads] = inputs["q"]
    sink = inputs["sink"].new_zeros(_FLASHMLA_HEADS)
    sink[:heads] = inputs["sink"]
    arguments = _arguments(inputs)
    schedule = flash_mla.get_mla_metadata()[0]

    def run() -> Outputs:
        out, _ = flash_mla.flash_mla_with_kvcache(
            q=q,
            block_table=None,
            cache_seqlens=None,
            tile_scheduler_metadata=schedule,
            is_fp8_kvcache=True,
            attn_sink=sink,
            use_legacy=True,
            **arguments,
        )
        return {"out_before_rotation": out[:, 0, :heads]}

    return run


def prepare_triton(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """The engine's own Triton split decoder (selected on ROCm only), native heads, without the inverse rotation."""
    del problem
    _require_v4(inputs, "the engine's Triton decoder")
    decode = import_engine("sglang.kernels.ops.attention.dsv4.triton_sparse_decode").triton_fp8_attention_fwd
    q, sink, arguments = inputs["q"].unsqueeze(1), inputs["sink"], _arguments(inputs)

    def run() -> Outputs:
        out, _ = decode(q=q, attn_sink=sink, **arguments)
        return {"out_before_rotation": out[:, 0]}

    return run


STOCKS = (Stock("flashmla-64-heads", prepare_flashmla), Stock("sglang-triton", prepare_triton))
