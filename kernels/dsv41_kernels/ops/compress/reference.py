"""Compressors C1 and C2, request by request and row by row, in float64 up to the bfloat16 roundings the model defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels import codec, rotary
from dsv41_kernels import layout as layouts

if TYPE_CHECKING:
    from dsv41_kernels.op import Outputs


def pool(
    kv: torch.Tensor,
    score: torch.Tensor,
    ring: torch.Tensor,
    ring_size: int,
    positions: torch.Tensor,
    request: torch.Tensor,
    location: torch.Tensor,
) -> torch.Tensor:
    """Pooled pairs [rows, 512] float64 (NaN for rows that complete none); the ring is updated in place.

    All reads of the old ring come before all writes. Of several rows that park in one slot the last one wins: an extend chunk
    longer than the ring.
    """
    pooled = torch.full(kv.shape, torch.nan, dtype=torch.float64, device=kv.device)
    position, owner, live = positions.tolist(), request.tolist(), (location != 0).tolist()
    old = ring.double()
    for row in range(len(position)):
        if not live[row] or position[row] % 2 == 0:
            continue
        chained = row > 0 and live[row - 1] and owner[row - 1] == owner[row] and position[row - 1] == position[row] - 1
        if chained:
            partner, partner_score = kv[row - 1].double(), score[row - 1].double()
        else:
            partner, partner_score = old[owner[row] * ring_size + (position[row] - 1) % ring_size].view(2, 512)
        weight = torch.stack([partner_score, score[row].double()]).softmax(dim=0)
        pooled[row] = weight[0] * partner + weight[1] * kv[row].double()
    for row in range(len(position)):
        if live[row] and position[row] % 2 == 0:
            ring[owner[row] * ring_size + position[row] % ring_size] = torch.cat([kv[row], score[row]])
    return pooled


def store(
    latent: torch.Tensor,
    positions: torch.Tensor,
    location: torch.Tensor,
    ratio: int,
    table: torch.Tensor,
    cache: torch.Tensor,
    layout: str,
    slots: int,
) -> None:
    """Rotate bfloat16 latents [rows, 512], round them and write the entries of completed rows into `cache`, in place.

    The rotation is float32 with every product rounded, then bfloat16, as the engine's is.
    """
    completed = (location != 0) & ((positions + 1) % ratio == 0)
    entry_position = (positions - (ratio - 1))[completed]
    rotated = rotary.rotate_tail(latent[completed].float(), table, entry_position).bfloat16().float()
    if layout != "v41_fp4":
        rotated = codec.round_fp4_entry(rotated)
    layouts.write(layouts.LAYOUTS[layout], cache, slots, location[completed] // ratio, rotated)


def normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension in float64."""
    x = x.double()
    return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.double()


def compress(
    *,
    kv: torch.Tensor,
    score: torch.Tensor | None,
    ring: torch.Tensor | None,
    ring_size: int,
    norm_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    request: torch.Tensor,
    location: torch.Tensor,
    start: torch.Tensor | None,
    length: torch.Tensor | None,
    table: torch.Tensor,
    cache: torch.Tensor,
    layout: str,
    slots: int,
) -> Outputs:
    """Return latent (NaN where no entry is completed), cache and ring. Arguments as in the kernel's launcher."""
    del start, length  # the pairing rule needs neither
    ratio = 1
    pooled = kv.double()
    outputs = {"cache": cache}
    if score is not None and ring is not None:
        ratio = 2
        pooled = pool(kv, score, ring, ring_size, positions, request, location)
        outputs["ring"] = ring
    latent = normalise(pooled.bfloat16(), norm_weight, eps)
    latent[location == 0] = torch.nan
    store(latent.bfloat16(), positions, location, ratio, table, cache, layout, slots)
    return {"latent": latent, **outputs}
