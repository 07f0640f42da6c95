"""The candidate scheme over a prefill chunk: the source scores everything its rows see, consumers only the blocks of each row's list.

Nothing waits for the device: which rows belong to which request, and what its newest row sees, the engine knows on the host.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels.ops.candidate_scores import compare
from dsv41_kernels.ops.candidate_scores.kernel import candidate_scores
from dsv41_kernels.ops.candidates.kernel import BLOCK, candidates
from dsv41_kernels.ops.index_scores.hooks import PREFILL_ROWS, SCORE_BUDGET, requests
from dsv41_kernels.ops.index_scores.kernel import index_scores, split_rows

if TYPE_CHECKING:
    from collections.abc import Iterator


_COMPARED = 8
"""Share of the score budget that a comparison takes at a time: it holds scores, bounds and masks of them at once."""
_COLUMNS = 128
"""Width of a table is a multiple of this: then its blocks of 8 are a multiple of 16."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The engine's buffers for what is selected, int32 [rows, at least topk].

    `positions` within the request; `slots` in the index pool, None where attention reads positions alone. What a row does not use is -1.
    """

    positions: torch.Tensor
    slots: torch.Tensor | None

    @staticmethod
    def of(inputs: Any) -> Selection:
        """The buffers of the engine's inputs."""
        return Selection(inputs.out_raw_indices, inputs.out_page_indices)

    def like(self) -> Selection:
        """Buffers of the same shape, to compare in."""
        return Selection(torch.empty_like(self.positions), None if self.slots is None else torch.empty_like(self.slots))

    def reset(self) -> None:
        """Nothing is selected."""
        self.positions.fill_(-1)
        if self.slots is not None:
            self.slots.fill_(-1)

    def rows(self, part: slice, topk: int) -> dict[str, Any]:
        """The outputs of our kernels for the rows `part`; slots that nobody reads go to a buffer of their own (None)."""
        return {
            "positions": self.positions[part, :topk],
            "slots": None if self.slots is None else self.slots[part, :topk],
        }


def known(inputs: Any) -> bool:
    """Whether the rows of a request are consecutive and counted on the host: a context-parallel rank's are not."""
    return inputs.req_rows is not None and inputs.rows_per_request is not None and inputs.seq_lens_cpu is not None


def _chunks(backend: Any, inputs: Any, share: int = 1) -> Iterator[tuple[slice, dict[str, Any], int]]:
    """Rows of one request at a time, few enough for a `share`-th of the score budget, the operands that our scorers share, and what the newest row sees.

    A request's slots stand in for the token table, one per compressed position, so the operands' ratio is 1. No row reads the padding: it
    makes all strides multiples of 16, which would else be compiled for apart from others.
    """
    indexer = inputs.indexer
    query = indexer.queries(inputs.q_lora, inputs.freqs_cis[inputs.positions]).contiguous()
    weight = indexer.head_weights(inputs.x).contiguous()
    length = ((inputs.positions + 1) // inputs.compress_ratio).to(torch.int32)
    keys = backend.token_to_kv_pool.get_index_k_with_scale_buffer(inputs.layer_id)
    for rows, slots in requests(inputs):
        visible = len(slots)
        table = torch.nn.functional.pad(slots.to(torch.int32), (0, -visible % _COLUMNS))[None, :]
        step = max(PREFILL_ROWS, SCORE_BUDGET // (4 * share * max(visible, BLOCK * backend.topk_blocks)))
        for first in range(rows.start, rows.stop, step):
            part = slice(first, min(first + step, rows.stop))
            operands = {
                "query": query[part],
                "weight": weight[part],
                "request": torch.zeros(part.stop - part.start, dtype=torch.int32, device=query.device),
                "table": table,
                "length": length[part],
                "keys": keys,
                "ratio": 1,
            }
            yield part, operands, visible


def _grouping(operands: dict[str, Any]) -> dict[str, Any]:
    rows, device = len(operands["length"]), operands["query"].device
    return {"group_rows": PREFILL_ROWS, "starts": split_rows([rows], PREFILL_ROWS, device)}


def _select_from_all(operands: dict[str, Any], count: int, topk: int, into: dict[str, Any]) -> torch.Tensor:
    """Score all that the rows see, select into `into`; returns the `count` best blocks of each row."""
    full = index_scores(**operands, max_length=operands["table"].shape[1], **_grouping(operands))
    return candidates(
        full["scores"],
        full["maxima"],
        operands["length"],
        operands["request"],
        operands["table"],
        ratio=1,
        count=count,
        topk=topk,
        **into,
    )["blocks"]


def publish(backend: Any, inputs: Any, selection: Selection) -> torch.Tensor:
    """Select for the source itself; returns the blocks of every row, int32 [rows, topk_blocks], ascending, -1 padded."""
    count, topk = backend.topk_blocks, inputs.indexer.index_topk
    rows, device = inputs.positions.shape[0], inputs.positions.device
    blocks = torch.full((rows, count), -1, dtype=torch.int32, device=device)
    selection.reset()
    for part, operands, _ in _chunks(backend, inputs):
        blocks[part] = _select_from_all(operands, count, topk, selection.rows(part, topk))
    return blocks


def consume(backend: Any, inputs: Any, blocks: torch.Tensor, selection: Selection) -> None:
    """Select among each row's `blocks` alone (int32 [rows, topk_blocks], ascending, -1 padded).

    Rows that see no more blocks than are listed have all of them listed: they are scored together, which reads a key once for several rows.
    """
    topk = inputs.indexer.index_topk
    selection.reset()
    for part, operands, visible in _chunks(backend, inputs):
        into = selection.rows(part, topk)
        if visible <= BLOCK * backend.topk_blocks:
            _select_from_all(operands, 0, topk, into)
        else:
            candidate_scores(**operands, blocks=blocks[part], topk=topk, **into)


def excess(
    backend: Any,
    inputs: Any,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    *,
    listed: torch.Tensor | None = None,
    published: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> float:
    """`compare.excess` of two selections of positions [rows, at least topk], among `listed` blocks where given.

    `published`, where given, are both sides' lists of blocks [rows, any], compared as well.
    """
    worst = 0.0
    for part, operands, _ in _chunks(backend, inputs, _COMPARED):
        scores, bound = compare.score_exactly(operands, **_grouping(operands))
        if published is not None:
            lists = (blocks[part] for blocks in published)
            worst = max(worst, compare.excess_of_blocks(scores, bound, operands["length"], *lists))
        scores = scores if listed is None else compare.restrict(scores, listed[part])
        worst = max(worst, compare.excess(scores, bound, ours[part], theirs[part]))
    return worst
