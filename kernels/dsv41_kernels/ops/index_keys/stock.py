"""The engine's index-key paths for the same latents.

`sglang-sm90`: GEMM, RMSNorm, frequency gather, RoPE with FP4 rounding, pack and store. `sglang-jit-cuda`: GEMM and the fused CUDA
kernel that the engine keeps off on sm_90.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels.engine import import_engine
from dsv41_kernels.op import Inputs, Outputs, Problem, Stock

if TYPE_CHECKING:
    from collections.abc import Callable

_KERNELS = "sglang.kernels.ops.attention.dsv4"


def prepare_sm90(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """`index_keys` of the indexer and `set_index_fp4` of its pool, launch by launch."""
    rmsnorm = import_engine("sglang.kernels.ops.layernorm.rmsnorm_fp32").rmsnorm_fp32
    rope_fake_quant = import_engine(f"{_KERNELS}.fp4_rope_fake_quant").rope_tail_fake_quant_fp4
    store = import_engine("sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache").store_fp4_index_k_cache
    freqs = torch.view_as_complex(inputs["table"].view(-1, 32, 2))
    ratio, latent = problem["ratio"], inputs["latent"]
    group = inputs["positions"] // ratio * ratio
    slots = inputs["location"].clamp_min(0)

    def run() -> Outputs:
        key = torch.nn.functional.linear(latent, inputs["weight"])
        key = rmsnorm(key, inputs["norm_weight"], inputs["eps"])
        key = rope_fake_quant(key, freqs[group], 64)
        store(input=key, cache=inputs["cache"], loc=slots, page_size=inputs["slots"], rne=True)
        return {}

    return run


def prepare_jit_cuda(problem: Problem, inputs: Inputs) -> Callable[[], Outputs]:
    """The projection and the fused CUDA kernel."""
    store = import_engine(f"{_KERNELS}.fp4_indexer_rope").index_k_norm_rope_pack_store

    def run() -> Outputs:
        key = torch.nn.functional.linear(inputs["latent"], inputs["weight"])
        store(
            key, inputs["norm_weight"], inputs["eps"], inputs["table"], inputs["positions"], inputs["location"], inputs["cache"],
            ratio=problem["ratio"],
        )  # fmt: skip
        return {}

    return run


STOCKS = (Stock("sglang-sm90", prepare_sm90), Stock("sglang-jit-cuda", prepare_jit_cuda))
