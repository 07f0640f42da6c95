"""The compressors in the engine: its fused C1/C2 entry points, and the gate that keeps them unused on sm_90."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels import layout
from dsv41_kernels.check import relative_error
from dsv41_kernels.ops.compress.kernel import compress
from dsv41_kernels.plugin.integration import Call, Default, Hook, Integration, Original
from dsv41_kernels.plugin.modes import Mode

if TYPE_CHECKING:
    from dsv41_kernels.op import Capability

_KERNELS = "kernels.ops.attention.dsv4.low_ratio_compress"


def _run(call: Call, cache: torch.Tensor, ring: torch.Tensor | None) -> torch.Tensor:
    """Ours on the arguments of any of the three entry points, with `cache` and `ring` to write to."""
    given = call.arguments
    fused = given["kv_input"]
    pair = ring is not None
    outputs = compress(
        kv=fused[:, : layout.HEAD_DIM],
        score=fused[:, layout.HEAD_DIM :] if pair else None,
        ring=ring,
        ring_size=given.get("ring_size", 1),
        norm_weight=given["norm_weight"],
        eps=given["eps"],
        positions=given["positions"],
        request=given.get("req", given["positions"]),
        location=given["raw_out_loc"] if pair else given["out_loc"],
        # Decode and verify rows need neither: the pairing rule sees the block from positions and requests.
        start=given.get("extend_start_loc"),
        length=given.get("extend_seq_lens"),
        table=given["freqs_cis"],
        cache=cache.view(torch.uint8),
        layout=str(getattr(given["layout"], "value", given["layout"])),
        slots=given["page_size"],
    )
    return outputs["latent"]


def run(_original: Original, call: Call) -> torch.Tensor:
    """`c1_decode_norm_rope_store`, `c2_decode_norm_rope_store` or `c2_prefill_norm_rope_store`."""
    given = call.arguments
    latent = _run(call, given["k_cache"], given.get("kv_state"))
    return latent if given["out"] is None else given["out"].copy_(latent)


def compare(original: Original, call: Call) -> tuple[torch.Tensor, float]:
    """Ours on copies of cache and ring before the engine's path; the error is the latents' over completed rows."""
    given = call.arguments
    ring = given.get("kv_state")
    ours = _run(call, given["k_cache"].clone(), None if ring is None else ring.clone())
    theirs: torch.Tensor = original(*call.args, **call.kwargs)
    completed = given["out_loc"] != 0 if ring is None else (given["raw_out_loc"] != 0) & (given["positions"] % 2 == 1)
    return theirs, relative_error(ours[completed], theirs[completed])


def _default(capability: Capability) -> Default:
    if capability == (9, 0):
        return Default(
            Mode.ON, "H200: C2 verify 13x, C2 extend 17x, decode 2x over the engine's sm_90 path (RESULTS.md)"
        )
    return Default(Mode.OFF, "the engine's own fused CUDA kernel serves this architecture")


_C1 = ("kv_input", "norm_weight", "positions", "out_loc", "eps", "freqs_cis", "k_cache", "page_size", "layout", "out")
_C2 = ("kv_input", "kv_state", "norm_weight", "positions", "req", "raw_out_loc", "eps", "freqs_cis", "k_cache")
_C2_DECODE = (*_C2, "page_size", "ring_size", "draft_len", "layout", "out")
_C2_PREFILL = (*_C2, "extend_start_loc", "extend_seq_lens", "page_size", "ring_size", "layout", "out")

INTEGRATION = Integration(
    op="compress",
    stock="c1/c2_*_norm_rope_store; on sm_90 c2_decode_pool and torch pairing",
    hooks=(
        # The gate also fixes the weight layout, so it must open before the model is built. Shadow opens it too: the engine's
        # path is then its fused CUDA kernel, which compiles for sm_90.
        Hook(
            "srt.layers.attention.dsv4.dsv41_sparse.fused_low_ratio_compress_supported",
            (),
            lambda _original, _call: True,
            gate=True,
        ),
        Hook(f"{_KERNELS}.c1_decode_norm_rope_store", _C1, run, compare),
        Hook(f"{_KERNELS}.c2_decode_norm_rope_store", _C2_DECODE, run, compare),
        Hook(f"{_KERNELS}.c2_prefill_norm_rope_store", _C2_PREFILL, run, compare),
    ),
    default=_default,
    check="verify-c2-2-v4",
    tolerance=1e-2,
)
