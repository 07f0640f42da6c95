"""Selection by sorting, on the host."""

from __future__ import annotations

import torch


def best(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest scores [n], of equal ones the lower, ascending; -inf and NaN are never selected."""
    usable = scores > float("-inf")
    order = torch.sort(torch.where(usable, scores, float("-inf")), descending=True, stable=True).indices
    return order[: min(k, int(usable.sum()))].sort().values


def padded(rows: list[torch.Tensor], width: int) -> torch.Tensor:
    """Rows of indices, each padded with -1: int32 [rows, width]."""
    if not rows:
        return torch.empty(0, width, dtype=torch.int32)
    return torch.stack([torch.nn.functional.pad(row.int(), (0, width - len(row)), value=-1) for row in rows])


def _slots(table: torch.Tensor, request: torch.Tensor, chosen: torch.Tensor, ratio: int) -> torch.Tensor:
    return table[request.long()][chosen * ratio] // ratio


def candidates(
    scores: torch.Tensor,
    maxima: torch.Tensor,
    length: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    *,
    ratio: int,
    count: int,
    topk: int,
) -> dict[str, torch.Tensor]:
    """What `kernel.candidates` returns. The positions come from all scores, not from the blocks."""
    blocks, slots, positions = [], [], []
    for row, visible in enumerate(length.tolist()):
        largest = maxima[row, : -(-visible // 8)].clone()
        if visible:
            largest[-1] = float("inf")
        blocks.append(best(largest, count))
        chosen = best(scores[row, :visible], topk)
        positions.append(chosen)
        slots.append(_slots(table, request[row], chosen, ratio))
    return {"blocks": padded(blocks, count), "slots": padded(slots, topk), "positions": padded(positions, topk)}
