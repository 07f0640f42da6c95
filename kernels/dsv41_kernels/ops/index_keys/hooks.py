"""Index keys in the engine: the store behind its fused compressors, which hands over keys already projected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_kernels import layout
from dsv41_kernels.check import relative_error
from dsv41_kernels.ops.index_keys.kernel import index_keys
from dsv41_kernels.plugin.integration import Call, Default, Hook, Integration, Original
from dsv41_kernels.plugin.modes import Mode

if TYPE_CHECKING:
    import torch

    from dsv41_kernels.op import Capability


def _run(call: Call, cache: torch.Tensor) -> None:
    given = call.arguments
    index_keys(
        latent=given["input"],
        weight=None,
        norm_weight=given["norm_weight"],
        eps=given["eps"],
        positions=given["positions"],
        location=given["loc"],
        table=given["freqs_cis"],
        cache=cache,
        ratio=given["ratio"],
        slots=_slots(cache),
    )


def _slots(cache: torch.Tensor) -> int:
    return cache.shape[1] // layout.INDEX_KEY.entry_bytes


def run(_original: Original, call: Call) -> None:
    """`index_k_norm_rope_pack_store`."""
    _run(call, call.arguments["cache"])


def compare(original: Original, call: Call) -> tuple[None, float]:
    """Ours into a copy of the cache; the error is that of the decoded keys."""
    loc, cache = call.arguments["loc"], call.arguments["cache"]
    copy = cache.clone()
    _run(call, copy)
    original(*call.args, **call.kwargs)
    stored = loc[loc > 0]
    ours, theirs = (layout.read(layout.INDEX_KEY, pages, _slots(cache), stored) for pages in (copy, cache))
    return None, relative_error(ours, theirs)


def _default(capability: Capability) -> Default:
    if capability == (9, 0):
        return Default(
            Mode.OFF, "H200: behind `compress` the engine runs its fused CUDA kernel, 10 us against our 12 (RESULTS.md)"
        )
    return Default(Mode.OFF, "the engine's own fused CUDA kernel serves this architecture")


INTEGRATION = Integration(
    op="index_keys",
    stock="index_k_norm_rope_pack_store; on sm_90 k_norm, RoPE with FP4, set_index_k_fp4",
    hooks=(
        Hook(
            "kernels.ops.attention.dsv4.fp4_indexer_rope.index_k_norm_rope_pack_store",
            ("input", "norm_weight", "eps", "freqs_cis", "positions", "loc", "cache", "ratio"),
            run,
            compare,
        ),
    ),
    default=_default,
    check="projected",
    tolerance=2e-2,
)
