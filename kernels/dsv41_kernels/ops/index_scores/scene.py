"""Random requests in a paged pool of index keys, as the engine lays them out: inputs of every op that scores keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels import codec, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADS = 32
SOFTMAX_SCALE = layout.INDEX_DIM**-0.5 * HEADS**-0.5
_UNMAPPED = 2**31 - 1


def _random_codes(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, tuple(shape), dtype=torch.uint8, generator=generator)


def random_queries(rows: int, heads: int, generator: torch.Generator) -> torch.Tensor:
    """Queries as the engine rounds them: E2M1 codes with one power of two per 32 channels, bfloat16 [rows, heads, 128]."""
    codes = codec.unpack_nibbles(_random_codes((rows, heads, 64), generator))
    exponents = torch.randint(-3, 2, (rows, heads, 4), generator=generator).float()
    return (codec.decode_e2m1(codes) * codec.spread(torch.exp2(exponents), codec.INDEX_GROUP)).to(torch.bfloat16)


def make_scene(
    lengths: Sequence[Sequence[int]],
    *,
    ratio: int,
    heads: int,
    max_length: int,
    device: torch.device,
    seed: int,
) -> dict[str, Any]:
    """Inputs of `index_scores` for requests given by the visible positions of each of their rows.

    Every request owns random full pages of 256 tokens. Bytes that no row sees are 0xFF: a scale read from there is not a
    number. Table entries beyond a request's pages point outside every pool.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = [count for request in lengths for count in request]
    requests = len(lengths)
    slots = layout.FULL_PAGE // ratio
    needed = [-(-max(request, default=0) // slots) for request in lengths]
    pages = torch.randperm(sum(needed) + 2, generator=generator)
    table = torch.full((requests + 1, max(max_length * ratio, 1)), _UNMAPPED, dtype=torch.int32)
    keys = torch.full((len(pages) * slots // layout.INDEX_SLOTS, layout.INDEX_KEY.page_bytes(layout.INDEX_SLOTS)), 255)
    keys = keys.to(torch.uint8)
    used = 0
    table_rows = torch.randperm(requests + 1, generator=generator)[:requests]
    data_bytes = layout.INDEX_SLOTS * layout.INDEX_KEY.data_bytes
    for owner, request, count in zip(table_rows.tolist(), lengths, needed, strict=True):
        own = pages[used : used + count]
        used += count
        tokens = (own[:, None] * layout.FULL_PAGE + torch.arange(layout.FULL_PAGE)).flatten()[: table.shape[1]]
        table[owner, : len(tokens)] = tokens.int()
        per_page = slots // layout.INDEX_SLOTS
        index_pages = (own[:, None] * per_page + torch.arange(per_page)).flatten()
        visible = torch.arange(len(index_pages) * layout.INDEX_SLOTS)
        visible = visible.view(-1, layout.INDEX_SLOTS) < max(request, default=0)
        seen = visible[:, :, None]
        data = _random_codes((len(index_pages), layout.INDEX_SLOTS, layout.INDEX_KEY.data_bytes), generator)
        scales = torch.randint(
            118,
            126,
            (len(index_pages), layout.INDEX_SLOTS, layout.INDEX_KEY.scale_bytes),
            dtype=torch.uint8,
            generator=generator,
        )
        keys[index_pages, :data_bytes] = torch.where(seen, data, 255).flatten(1)
        keys[index_pages, data_bytes:] = torch.where(seen, scales, 255).flatten(1)
    owners = torch.repeat_interleave(table_rows, torch.tensor([len(request) for request in lengths], dtype=torch.int64))
    weight = (torch.randn(len(rows), heads, generator=generator) * SOFTMAX_SCALE).to(torch.bfloat16)
    return {
        "query": random_queries(len(rows), heads, generator).to(device),
        "weight": weight.to(device),
        "request": owners.to(device),
        "table": table.to(device),
        "length": torch.tensor(rows, dtype=torch.int32, device=device),
        "keys": keys.to(device),
    }


def consecutive_lengths(newest: int, rows: int, ratio: int) -> list[int]:
    """Visible positions of `rows` consecutive tokens of a request whose newest one sees `newest`."""
    token = newest * ratio  # the newest row's position plus one
    return [max(token - (rows - 1 - row), 0) // ratio for row in range(rows)]
