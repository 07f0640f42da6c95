"""Index keys in float64 up to the bfloat16 roundings the model defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_kernels import layout, rotary

if TYPE_CHECKING:
    import torch

    from dsv41_kernels.op import Outputs


def index_keys(
    *,
    latent: torch.Tensor,
    weight: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    location: torch.Tensor,
    table: torch.Tensor,
    cache: torch.Tensor,
    ratio: int,
    slots: int,
) -> Outputs:
    """Return the cache with the keys of all rows with a positive location. Arguments as in the kernel's launcher."""
    stored = location > 0
    key = latent[stored].double()
    if weight is not None:
        key = (key @ weight.double().T).bfloat16().double()
    key = key * (key.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * norm_weight.double()
    position = positions[stored] // ratio * ratio
    key = rotary.rotate_tail(key.bfloat16().float(), table, position).bfloat16()
    layout.write(layout.INDEX_KEY, cache, slots, location[stored], key)
    return {"cache": cache}
