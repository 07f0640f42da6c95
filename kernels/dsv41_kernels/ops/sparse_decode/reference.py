"""Sparse MLA decode in float64, row by row over the gathered entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv41_kernels import layout, rotary

if TYPE_CHECKING:
    from dsv41_kernels.op import Outputs


def _gather(
    cache: torch.Tensor, index: torch.Tensor, length: torch.Tensor, entry: layout.EntryLayout, slots: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries [rows, width, 512] float64 and which of them count [rows, width]."""
    rows, width = index.shape
    valid = (torch.arange(width, device=index.device)[None, :] < length[:, None]) & (index >= 0)
    entries = layout.read(entry, cache, slots, index.clamp_min(0).flatten()).double().view(rows, width, layout.HEAD_DIM)
    return entries, valid


def sparse_decode(
    *,
    q: torch.Tensor,
    window_cache: torch.Tensor,
    window_index: torch.Tensor,
    window_length: torch.Tensor,
    window_layout: str,
    window_slots: int,
    selected_cache: torch.Tensor | None,
    selected_index: torch.Tensor | None,
    selected_length: torch.Tensor | None,
    selected_layout: str,
    selected_slots: int,
    sink: torch.Tensor,
    scale: float,
    table: torch.Tensor | None,
    positions: torch.Tensor | None,
) -> Outputs:
    """Return `out` and `out_before_rotation` [rows, heads, 512] float64. Arguments as in the kernel's launcher."""
    k, valid = _gather(window_cache, window_index, window_length, layout.LAYOUTS[window_layout], window_slots)
    if selected_cache is not None and selected_index is not None and selected_length is not None:
        more = _gather(selected_cache, selected_index, selected_length, layout.LAYOUTS[selected_layout], selected_slots)
        k, valid = torch.cat([k, more[0]], dim=1), torch.cat([valid, more[1]], dim=1)
    logits = torch.einsum("rhd,rnd->rhn", q.double(), k) * scale
    logits = logits.masked_fill(~valid[:, None, :], -torch.inf)
    everything = torch.cat([logits, sink.double().view(1, -1, 1).expand(len(q), -1, 1)], dim=2)
    # softmax of all -inf is NaN (no entry, no sink); the sink's own column has no value and is dropped.
    weight = everything.softmax(dim=2).nan_to_num(0.0)[:, :, :-1]
    out = torch.einsum("rhn,rnd->rhd", weight, k)
    rotated = out
    if table is not None and positions is not None:
        rotated = rotary.rotate_tail(out, table, positions, inverse=True)
    return {"out": rotated, "out_before_rotation": out}
