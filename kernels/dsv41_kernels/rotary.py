"""Rotary position embedding of the last 64 channels, as a table and in plain torch (the references' form)."""

from __future__ import annotations

import torch

from dsv41_kernels.layout import ROPE_DIM


def frequency_table(positions: int, theta: float = 10000.0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Table [positions, 64] float32: cosine and sine of each of the 32 frequencies, interleaved.

    Unscaled RoPE; what kernels need is only the form. The engine's own table (`view_as_real(freqs_cis).flatten(-2)`) has it
    with YaRN applied.
    """
    exponent = torch.arange(0, ROPE_DIM, 2, dtype=torch.float64, device=device) / ROPE_DIM
    angle = torch.arange(positions, dtype=torch.float64, device=device)[:, None] / theta**exponent
    return torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(-2).float()


def rotate_tail(
    x: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, *, inverse: bool = False
) -> torch.Tensor:
    """Rotate the last 64 channels of x [n, ..., d] by the angles of `positions` [n]; same shape and dtype as x.

    Channels (2i, 2i + 1) of the tail are one complex number, multiplied by the table's (cos, sin) or its conjugate.
    """
    angle = table[positions.long()].to(x.dtype).view(x.shape[0], *([1] * (x.ndim - 2)), ROPE_DIM // 2, 2)
    cos, sin = angle[..., 0], -angle[..., 1] if inverse else angle[..., 1]
    pair = x[..., -ROPE_DIM:].reshape(*x.shape[:-1], ROPE_DIM // 2, 2)
    real, imaginary = pair[..., 0], pair[..., 1]
    rotated = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :-ROPE_DIM], rotated], dim=-1)
