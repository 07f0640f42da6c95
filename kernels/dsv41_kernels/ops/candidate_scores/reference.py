"""Scores of listed blocks in float64."""

from __future__ import annotations

import torch

from dsv41_kernels.ops.index_scores.reference import score_positions, slots_of


def candidate_scores(
    query: torch.Tensor,
    weight: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    length: torch.Tensor,
    keys: torch.Tensor,
    blocks: torch.Tensor,
    *,
    ratio: int,
    topk: int,  # noqa: ARG001
) -> dict[str, torch.Tensor]:
    """Scores [rows, 8 * count], NaN where nothing is specified, and the position and slot of each column (-1: none)."""
    rows, count = blocks.shape
    scores = torch.full((rows, count * 8), float("nan"), dtype=torch.float64, device=query.device)
    positions, all_slots = torch.full((2, rows, count * 8), -1, dtype=torch.int64, device=query.device)
    for row, visible in enumerate(length.tolist()):
        listed = blocks[row][blocks[row] >= 0]
        position = (listed[:, None] * 8 + torch.arange(8, device=blocks.device)).flatten()
        position = position[position < visible]
        slots = slots_of(table, request[row], position, ratio)
        one = slice(row, row + 1)
        scores[row, : len(position)] = score_positions(query[one], weight[one], keys, slots)[0]
        positions[row, : len(position)] = position
        all_slots[row, : len(position)] = slots
    return {"scores": scores, "positions": positions, "slots": all_slots}
