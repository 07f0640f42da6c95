"""The engine's compressors for the same rows.

`sglang-sm90` is what SGLang 0.5.23 runs on sm_90: a Triton pooling kernel for decode, plain torch pairing for verify and extend,
then norm, gather, RoPE with FP4 rounding and store as separate launches. `sglang-jit-cuda` is its fused CUDA kernel, which the
engine keeps off on sm_90 (`fused_low_ratio_compress_supported`) though it compiles there.
"""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels.engine import import_engine, lift
from dsv41_kernels.op import Inputs, Outputs, Problem, Stock

if TYPE_CHECKING:
    from collections.abc import Callable

_KERNELS = "sglang.kernels.ops.attention.dsv4"
_STATE = "sglang.srt.mem_cache.deepseek_v4_compress_state"
_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"


def _with_empty_row(ring: torch.Tensor) -> torch.Tensor:
    """The engine keeps a spare last row for "no slot"."""
    return torch.cat([ring, ring.new_zeros(1, ring.shape[1])])


def _pairing(ring: torch.Tensor, ring_size: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The backend's `_low_ratio_pair_partners`, bound to a ring of its own."""
    names: dict[str, Any] = {"torch": torch, "dataclasses": dataclasses, "Tuple": tuple}
    pair_type = lift(_STATE, "KVAndScore", names)
    state = types.SimpleNamespace(ring_size=ring_size, kv_score_buffer=pair_type(ring))
    for method in ("translate_from_req_position_to_state_loc", "get_state_by_state_loc", "set_state_by_state_loc"):
        setattr(state, method, types.MethodType(lift(_STATE, f"CompressStatePool.{method}", names), state))
    pool = types.SimpleNamespace(get_attention_compress_states=lambda _layer: state)
    partners = lift(_BACKEND, "DeepseekV4AttnBackend._low_ratio_pair_partners", names)
    return types.MethodType(partners, types.SimpleNamespace(token_to_kv_pool=pool))


def prepare_sm90(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """The launches of `_low_ratio_compress_decode` or `_low_ratio_compress_torch`, in their order."""
    rmsnorm = import_engine("sglang.kernels.ops.layernorm.rmsnorm_fp32").rmsnorm_fp32
    rope_fake_quant = import_engine(f"{_KERNELS}.fp4_rope_fake_quant").rope_tail_fake_quant_fp4
    store_cache = import_engine(f"{_KERNELS}.attn").fused_store_cache
    freqs = torch.view_as_complex(inputs["table"].view(-1, 32, 2))
    position, request, location = inputs["positions"], inputs["request"], inputs["location"]
    cache, fp4, ratio = inputs["cache"], inputs["layout"] == "v41_fp4", problem["ratio"]
    layout = import_engine(f"{_KERNELS}.kv_layout").KVLayout.parse(inputs["layout"])
    completes = (position % 2 == 1) & (location != 0) if ratio != 1 else location != 0
    out_location = torch.where(completes, location // ratio, torch.where(location == 0, 0, -1))

    def write(pooled: torch.Tensor, slots: torch.Tensor, group: torch.Tensor) -> Outputs:
        latent = rmsnorm(pooled.to(torch.bfloat16), inputs["norm_weight"], inputs["eps"])
        angle = freqs[group]
        rotated = latent if fp4 else rope_fake_quant(latent, angle, 64, compressed_kv=True)
        store_cache(
            input=rotated,
            cache=cache,
            indices=slots,
            page_size=inputs["slots"],
            type="flashmla",
            layout=layout,
            freqs_cis=angle if fp4 else None,
        )
        return {"cache": cache}

    if ratio == 1:
        return lambda: write(
            inputs["kv"], torch.where(out_location >= 0, out_location, torch.zeros_like(out_location)), position
        )
    ring = _with_empty_row(inputs["ring"])
    kv, score = inputs["kv"].contiguous(), inputs["score"].contiguous()
    if problem["mode"] == "decode":
        pool = import_engine(f"{_KERNELS}.c2_decode_pool").c2_decode_pool

        def decode() -> Outputs:
            pooled, group, slots = pool(
                kv, score, position, location, out_location, request, ring[:, :512], ring[:, 512:], len(ring) - 1,
                ring_size=inputs["ring_size"],
            )  # fmt: skip
            return write(pooled, slots, group)

        return decode
    partners = _pairing(ring, inputs["ring_size"])

    def general() -> Outputs:
        partner, partner_score = partners(layer_id=0, kv=kv, score=score, req=request, pos=position, pad=location == 0)
        pairs = torch.stack([partner, kv], dim=1), torch.stack([partner_score, score], dim=1)
        pooled = (pairs[0] * pairs[1].softmax(dim=1)).sum(dim=1)
        group = torch.where(position % 2 == 1, position - 1, position)
        return write(pooled, torch.where(out_location >= 0, out_location, torch.zeros_like(out_location)), group)

    return general


def prepare_jit_cuda(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """The fused CUDA kernels, called as the backend's `_low_ratio_compress_fused` calls them."""
    fused = import_engine(f"{_KERNELS}.low_ratio_compress")
    common = {"page_size": inputs["slots"], "layout": inputs["layout"]}
    cache, position, location = inputs["cache"], inputs["positions"], inputs["location"]
    if problem["ratio"] == 1:

        def one() -> Outputs:
            latent = fused.c1_decode_norm_rope_store(
                inputs["kv"].contiguous(), inputs["norm_weight"], position, location, inputs["eps"], inputs["table"], cache,
                **common,
            )  # fmt: skip
            return {"latent": latent, "cache": cache}

        return one
    projected = torch.cat([inputs["kv"], inputs["score"]], dim=1)
    arguments = (
        projected, inputs["ring"], inputs["norm_weight"], position, inputs["request"], location, inputs["eps"],
        inputs["table"], cache,
    )  # fmt: skip
    common["ring_size"] = inputs["ring_size"]

    def two() -> Outputs:
        if problem["mode"] == "extend":
            latent = fused.c2_prefill_norm_rope_store(*arguments, inputs["start"], inputs["length"], **common)
        else:
            draft = len(position) // max(problem["requests"], 1)
            latent = fused.c2_decode_norm_rope_store(*arguments, draft_len=draft, **common)
        return {"latent": latent, "cache": cache}

    return two


STOCKS = (Stock("sglang-sm90", prepare_sm90), Stock("sglang-jit-cuda", prepare_jit_cuda))
