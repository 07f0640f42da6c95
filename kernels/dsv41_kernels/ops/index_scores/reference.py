"""Index scores in float64, from the codecs and the layout alone."""

from __future__ import annotations

import torch

from dsv41_kernels import layout

_ROWS = 8
_CHUNK = 1 << 16
"""Rows and positions scored at a time: with 32 heads their float64 products take 134 MB."""


def slots_of(table: torch.Tensor, request: torch.Tensor, positions: torch.Tensor, ratio: int) -> torch.Tensor:
    """Cache slots (int64) of compressed positions of one request: the slot of the first token, over the ratio."""
    return table[request.long()][positions.long() * ratio].long() // ratio


def score_positions(query: torch.Tensor, weight: torch.Tensor, keys: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Sum over h of relu(q[r, h] . k[s]) * w[r, h], float64 [rows, slots], for query [rows, heads, 128]."""
    result = []
    for chunk in torch.split(slots, _CHUNK):
        k = layout.read(layout.INDEX_KEY, keys, layout.INDEX_SLOTS, chunk).double()
        products = torch.einsum("rhd,sd->rhs", query.double(), k).relu()
        result.append((products * weight.double()[:, :, None]).sum(dim=1))
    return torch.cat(result, dim=1) if result else query.new_zeros(len(query), 0, dtype=torch.float64)


def block_maxima(scores: torch.Tensor) -> torch.Tensor:
    """Maximum of each block of 8 of scores [n], the last block partial: [ceil(n / 8)]."""
    padded = torch.nn.functional.pad(scores, (0, -len(scores) % 8), value=float("-inf"))
    return padded.view(-1, 8).amax(dim=1)


def index_scores(
    query: torch.Tensor,
    weight: torch.Tensor,
    request: torch.Tensor,
    table: torch.Tensor,
    length: torch.Tensor,
    keys: torch.Tensor,
    *,
    ratio: int,
    max_length: int,
    **_grouping: object,
) -> dict[str, torch.Tensor]:
    """What `kernel.index_scores` returns; NaN stands where nothing is specified."""
    rows = len(query)
    scores = torch.full((rows, max_length), float("nan"), dtype=torch.float64, device=query.device)
    maxima = torch.full((rows, -(-max_length // 8)), float("nan"), dtype=torch.float64, device=query.device)
    owners = request.tolist()
    first = 0
    while first < rows:  # consecutive rows of one request share the keys
        end = first + 1
        while end < rows and end - first < _ROWS and owners[end] == owners[first]:
            end += 1
        visible = length[first:end].tolist()
        positions = torch.arange(max(visible), device=query.device)
        slots = slots_of(table, request[first], positions, ratio)
        block = score_positions(query[first:end], weight[first:end], keys, slots)
        for row, count in zip(range(first, end), visible, strict=True):
            scores[row, :count] = block[row - first, :count]
            if count:
                maxima[row, : -(-count // 8)] = block_maxima(block[row - first, :count])
        first = end
    return {"scores": scores, "maxima": maxima}
