"""Sparse decode in the engine: behind the backend's FlashMLA call, on the rank's real heads.

The backend pads queries to 64 heads on sm_90 and keeps FlashMLA in an attribute set by its constructor. The kernel takes the
first heads of the padded query and writes the first heads of a padded output: the model slices the same heads out again.
The inverse rotation stays where the engine has it, behind attention.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels import layout
from dsv41_kernels.check import relative_error
from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.sparse_decode.kernel import sparse_decode
from dsv41_kernels.plugin.integration import Call, Default, Hook, Integration, Original
from dsv41_kernels.plugin.modes import Mode

if TYPE_CHECKING:
    from dsv41_kernels.op import Capability

_LAYOUT = "SGLANG_DSV4_KV_LAYOUT"
_FLASHMLA_V41 = 10
"""Major capability on which the engine stores V4.1 layouts unless told otherwise."""
_OWN_DECODER = 12
"""Major capability on which the engine's attention does not go through FlashMLA's call."""


def _pages(view: torch.Tensor) -> tuple[torch.Tensor, str, int]:
    """A pool's bytes, layout name and slots per page, from the view [pages, slots, 1, entry bytes] handed to attention.

    Raises UnsupportedProblemError for any layout but V4, which the engine takes on sm_90. On sm_100 it takes V4.1's, block-split as in
    `layout`, or interleaved with `SGLANG_DSV4_KV_LAYOUT=v41_new`; neither has run through this hook, so `refuse` stops the start there.
    """
    slots, entry_bytes = view.shape[1], view.shape[3]
    if entry_bytes != layout.V4.entry_bytes or view.stride(0) != layout.V4.page_bytes(slots):
        raise UnsupportedProblemError(
            f"pages of {slots} entries of {entry_bytes} B every {view.stride(0)} B are not V4; set DSV41_KERNELS=sparse_decode=off"
        )
    return view.view(torch.uint8), layout.V4.name, slots


def attend(heads: int, arguments: dict[str, Any]) -> torch.Tensor:
    """Run the kernel on the arguments of the engine's `flash_mla_with_kvcache`; out [rows, 1, padded heads, 512].

    Only the first `heads` heads of the result are written.
    """
    q = arguments["q"]
    out = torch.empty_like(q)
    window, window_layout, window_slots = _pages(arguments["k_cache"])
    extra = arguments.get("extra_k_cache")
    selected, selected_layout, selected_slots = (None, window_layout, window_slots) if extra is None else _pages(extra)
    indices = arguments.get("extra_indices_in_kvcache")
    sparse_decode(
        q=q[:, 0, :heads],
        out=out[:, 0, :heads],
        window_cache=window,
        window_index=arguments["indices"].squeeze(1),
        window_length=arguments["topk_length"],
        window_layout=window_layout,
        window_slots=window_slots,
        selected_cache=selected,
        selected_index=None if indices is None else indices.squeeze(1),
        selected_length=arguments.get("extra_topk_length"),
        selected_layout=selected_layout,
        selected_slots=selected_slots,
        sink=arguments["attn_sink"][:heads],
        scale=arguments["softmax_scale"],
        table=None,
        positions=None,
    )
    return out


class _Behind:
    """What stands in the backend's FlashMLA attribute: ours, or the engine's with ours beside it."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.flashmla = backend, backend._flash_mla_with_kvcache  # noqa: SLF001

    def __call__(self, **arguments: Any) -> tuple[torch.Tensor, None]:
        return attend(self.backend.dsv41_heads, arguments), None


def swap(original: Original, call: Call) -> None:
    """`DeepseekV4AttnBackend.__init__`: construct, then put ours behind the FlashMLA attribute."""
    original(*call.args, **call.kwargs)
    backend = call.arguments["self"]
    backend._flash_mla_with_kvcache = _Behind(backend)  # noqa: SLF001


def note_heads(original: Original, call: Call) -> Any:
    """`DeepseekV4AttnBackend._forward_attention`: remember how many of the query's heads are real."""
    call.arguments["self"].dsv41_heads = call.arguments["layer"].tp_q_head_num
    return original(*call.args, **call.kwargs)


def compare(original: Original, call: Call) -> tuple[Any, float]:
    """The engine's attention, with ours run on the arguments of its FlashMLA call."""
    backend, heads = call.arguments["self"], call.arguments["layer"].tp_q_head_num
    flashmla, errors = backend._flash_mla_with_kvcache, [0.0]  # noqa: SLF001

    def both(**arguments: Any) -> Any:
        theirs = flashmla(**arguments)
        ours = attend(heads, arguments)
        errors.append(relative_error(ours[:, 0, :heads], theirs[0][:, 0, :heads]))
        return theirs

    backend._flash_mla_with_kvcache = both  # noqa: SLF001
    try:
        result = original(*call.args, **call.kwargs)
    finally:
        backend._flash_mla_with_kvcache = flashmla  # noqa: SLF001
    return result, errors[-1]


def refuse(capability: Capability) -> str | None:
    """Why the engine on such a GPU never comes here with pools that are served (`select_dsv4_kv_layout`, `_forward_attention`)."""
    if capability[0] == _FLASHMLA_V41 and os.environ.get(_LAYOUT, "auto").lower() != layout.V4.name:
        return f"the engine's pools have a V4.1 layout on this GPU, the hook reads V4 (which {_LAYOUT}=v4 would give)"
    if capability[0] == _OWN_DECODER:
        return "the engine decodes by a kernel of its own on this GPU, not by the call that is hooked"
    return None


def _default(capability: Capability) -> Default:
    if capability == (9, 0):
        return Default(
            Mode.OFF,
            "H200: 1.2x to 1.4x over padded FlashMLA with 8 or 16 heads (1.14x at 64 rows of the window alone), 0.99x with 32, "
            "0.86x with 64 (RESULTS.md); ask for it on TP4 and TP8",
        )
    return Default(Mode.OFF, "not measured on this architecture")


_BACKEND = "srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend"
_INIT = ("self", "model_runner", "skip_prefill", "speculative_step_id", "topk", "speculative_num_steps")
_ATTENTION = (
    "self",
    "q",
    "k",
    "v",
    "layer",
    "forward_batch",
    "compress_ratio",
    "save_kv_cache",
    "attn_sink",
    "cos_sin_cache",
    "_",
)

INTEGRATION = Integration(
    op="sparse_decode",
    stock="FlashMLA with the query padded to 64 heads",
    hooks=(
        Hook(f"{_BACKEND}.__init__", _INIT, swap),
        Hook(f"{_BACKEND}._forward_attention", _ATTENTION, note_heads, compare),
    ),
    default=_default,
    check="v4",
    tolerance=1e-2,
    refuses=refuse,
)
