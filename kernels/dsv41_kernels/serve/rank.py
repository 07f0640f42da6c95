"""The shapes of one rank of several on a single GPU: pad few query heads as a rank does.

SGLang 0.5.23 pads a rank's query heads to the 64 that FlashMLA takes, but only where attention is split over ranks; a model of 16
heads on one GPU is handed over as it is and refused (`Unsupported h_q: 16`). These hooks let the engine's own code answer as for one
rank of several. With 64 heads nothing changes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTENTION = "sglang.srt.models.deepseek_v4.MqaAttentionBase"
TARGETS = (f"{_ATTENTION}._kernel_num_heads", f"{_ATTENTION}._local_attn_sink")
_SEVERAL = 2


def answer_as_rank(original: Callable[..., Any], attention: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `original` on `attention` while it says that attention is split: its rank is 0, and its heads are the rank's."""
    size = attention.attn_tp_size
    attention.attn_tp_size = max(size, _SEVERAL)
    try:
        return original(attention, *args, **kwargs)
    finally:
        attention.attn_tp_size = size


def register() -> None:
    """Hook both of the engine's functions."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    for target in TARGETS:
        hooks.HookRegistry.register(target, answer_as_rank, hooks.HookType.AROUND)
