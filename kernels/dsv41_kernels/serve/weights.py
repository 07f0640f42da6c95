"""Finite weights for `--load-format dummy`: the engine's own are near zero, with scales that give no usable logits.

    SGLANG_PLUGINS=dsv41_synthetic,...  DSV41_SYNTHETIC_SEED=1

Every tensor depends on the seed, its name and its shape alone, so two engines of the same layout hold the same model. A matrix is
normal with unit gain (standard deviation 1/sqrt(fan-in)); a quantised one is spread over the codes and its scales are the power
of two that gives the same gain. Three things keep rounding from deciding greedy tokens, as it would in a random network. What
experts add is small: which of two nearly equal experts is chosen changes little. What attention adds is large: the average of
hundreds of random values is not. The output rows have log-normal lengths: with rows of one length the two most likely of 129,280
tokens lie too close together.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import zlib
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels.serve import rank

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "DSV41_SYNTHETIC_SEED"
_SCHEDULER = "sglang.srt.managers.scheduler"
_TARGET = "sglang.srt.model_loader.loader.initialize_dummy_weights"
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_FUSED = "wkv_gate.weight"
_PARTS = ("wkv.weight", "wgate.weight")
_E4M3_SPREAD = 32.0
"""Standard deviation of E4M3 codes: far from the largest, 448, and from the subnormals."""
_GAINS = {".w2_": -3, ".down_proj.": -3, ".wo_b.": 2}
"""Powers of two by which what experts and attention add to the residual stream is scaled."""
_OUTPUT_LENGTH, _OUTPUT_SPREAD = 2.0, 0.5
"""Median length of an output row, and the standard deviation of its logarithm."""
_E2M1_SPREAD = math.sqrt((0 + 0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8)
"""Standard deviation of uniformly drawn E2M1 codes."""


def _gain(name: str) -> int:
    return next((gain for part, gain in _GAINS.items() if part in name), 0)


def _exponent(name: str, spread: float, fan_in: int) -> int:
    """The power of two that brings codes of standard deviation `spread` to the gain of the matrix `name`."""
    return _gain(name) - round(math.log2(spread * math.sqrt(fan_in)))


def _weight_of(name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The quantised weight that the scale `name` belongs to, or None when `name` is not a block scale."""
    for suffix in _SCALES:
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            for candidate in (f"{stem}weight", stem.removesuffix("_")):
                if candidate in tensors:
                    return tensors[candidate]
    return None


def _normal(shape: torch.Size, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)


def fill(name: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor], seed: int) -> None:
    """Overwrite `tensor`, the entry `name` of the state dict `tensors`, in place."""
    if name.endswith(_FUSED):
        # The engine holds a ratio-2 compressor's two projections as one matrix or as two, depending on the kernels it runs.
        for part, half in zip(_PARTS, tensor.chunk(2), strict=True):
            fill(name.removesuffix(_FUSED) + part, half, tensors, seed)
        return
    generator = torch.Generator(device=tensor.device).manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    weight = _weight_of(name, tensors)
    if weight is not None and weight.dtype in (torch.uint8, torch.int8):
        exponent = _exponent(name, _E2M1_SPREAD, 2 * weight.shape[-1])
    elif weight is not None:
        exponent = _exponent(name, _E4M3_SPREAD, weight.shape[-1])
    else:
        exponent = 0
    if weight is not None and tensor.dtype is torch.uint8:
        tensor.fill_(127 + exponent)
    elif weight is not None:
        tensor.copy_(torch.full(tensor.shape, 2.0**exponent, device=tensor.device).to(tensor.dtype))
    elif tensor.dtype in (torch.uint8, torch.int8) and tensor.dim() >= 2:  # noqa: PLR2004  packed E2M1 codes
        tensor.view(torch.uint8).random_(0, 256, generator=generator)
    elif not tensor.dtype.is_floating_point:
        return
    elif tensor.dim() < 2:  # noqa: PLR2004
        _fill_vector(name, tensor, generator)
    else:
        _fill_matrix(name, tensor, generator)


def _fill_vector(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    noise = _normal(tensor.shape, generator, tensor.device)
    if "norm" in name:
        tensor.copy_(1 + 0.1 * noise)
    elif name.endswith("_scale"):
        tensor.fill_(1)
    else:
        tensor.copy_(0.1 * noise)


def _fill_matrix(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    if tensor.element_size() == 1:
        for part in tensor.flatten(0, -3) if tensor.dim() > 2 else (tensor,):  # noqa: PLR2004
            part.copy_((_E4M3_SPREAD * _normal(part.shape, generator, part.device)).clamp_(-448, 448).to(part.dtype))
        return
    noise = _normal(tensor.shape, generator, tensor.device)
    if name.endswith("embed_tokens.weight") or name == "embed.weight":
        tensor.copy_(noise)
        return
    if name.endswith("lm_head.weight") or name == "head.weight":
        length = _normal(torch.Size((tensor.shape[0], 1)), generator, tensor.device)
        noise *= _OUTPUT_LENGTH * torch.exp(_OUTPUT_SPREAD * length)
    tensor.copy_(noise * 2.0 ** _gain(name) / math.sqrt(tensor.shape[-1]))


def initialize(model: torch.nn.Module, seed: int) -> None:
    """Fill every tensor of `model`. Raises ValueError for one that came out without finite values."""
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        fill(name, tensor, tensors, seed)
        if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32) and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: not finite after initialisation")


def register() -> None:
    """Entry point. When `DSV41_SYNTHETIC_SEED` is set, replace the engine's dummy weights and pad heads as a rank does."""
    seed = os.environ.get(VARIABLE, "")
    if not seed:
        return
    if not seed.isdecimal():
        raise SystemExit(f"{VARIABLE}={seed!r} is not a whole number; set one, or unset it")
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")

    def replaced(_original: Callable[..., Any], model: torch.nn.Module, *_args: Any, **_kwargs: Any) -> None:
        initialize(model, int(seed))

    hooks.HookRegistry.register(_TARGET, replaced, hooks.HookType.AROUND)
    # The other processes of a server have no model, and importing it there costs seconds.
    if _SCHEDULER in sys.modules:
        rank.register()
