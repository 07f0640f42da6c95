"""How far two selections lie apart, in units of what rounding explains.

The engine rounds index scores to bfloat16 and then selects, so near the threshold it takes other positions than the exact scores would.
Three roundings lead to a score of the engine's: of the product q.k of each head, of that times the head's weight, and of their sum.
With u = 2^-9, half a unit in the last place of a bfloat16, its distance from the exact score s is at most

    b = 3 u M,      M = sum over h of relu(q[h] . k) |w[h]|,  which is no less than |s|

Say ours alone selected y and theirs alone selected x. Both are right within their rounding only if |s(y) - s(x)| <= b(y) + b(x). The quotient
of the two sides is the error: up to 1 rounding can do it, above 1 one of the selections is wrong.

Source of the roundings: `_fp4_index_logits_tile` (decode) and `DeepseekV41Indexer.scores` (prefill) in SGLang 0.5.23.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from dsv41_kernels.ops.candidates.kernel import BLOCK
from dsv41_kernels.ops.index_scores.kernel import index_scores

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDING = 3 * 2.0**-9


def score_exactly(operands: Mapping[str, Any], **grouping: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of all that the rows see, and the most that the engine's may differ from them: float32 [rows, longest length].

    What lies beyond a row's length is -inf. Synchronises with the device.
    """
    length = operands["length"]
    longest = int(length.max()) if len(length) else 0
    scores = index_scores(**operands, max_length=longest, **grouping)["scores"]
    absolute = {**operands, "weight": operands["weight"].abs()}
    bound = ROUNDING * index_scores(**absolute, max_length=longest, **grouping)["scores"]
    unseen = torch.arange(longest, device=scores.device)[None, :] >= length[:, None]
    return scores.masked_fill(unseen, -math.inf), bound.masked_fill(unseen, 0)


def restrict(scores: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """`scores` [rows, n] where a row's `blocks` (int [rows, any], -1 padded) list the position, -inf elsewhere."""
    listed = _members(blocks, -(-scores.shape[1] // BLOCK)).repeat_interleave(BLOCK, dim=1)[:, : scores.shape[1]]
    return scores.masked_fill(~listed, -math.inf)


def over_blocks(values: torch.Tensor) -> torch.Tensor:
    """The largest of each block of 8 of `values` [rows, n]: [rows, ceil(n / 8)]."""
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % BLOCK), value=-math.inf)
    return padded.view(len(padded), padded.shape[1] // BLOCK, BLOCK).amax(dim=2)


def pin_newest(maxima: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """`maxima` [rows, blocks] with +inf for each row's newest block: whoever leaves that out is wrong."""
    newest = torch.arange(maxima.shape[1], device=maxima.device)[None, :] == (length[:, None] - 1) // BLOCK
    return maxima.masked_fill(newest, math.inf)


def excess_of_blocks(
    scores: torch.Tensor, bound: torch.Tensor, length: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor
) -> float:
    """`excess` of two lists of blocks, int [rows, any], -1 padded; `scores` and `bound` of positions, as `score_exactly` returns them."""
    return excess(pin_newest(over_blocks(scores), length), over_blocks(bound), ours, theirs)


def find_positions(slots: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Positions of cache slots [rows, any] among the slots of the rows' positions, `columns` [rows, n].

    -1 stays -1; a slot that is no position's becomes n, which no selection may hold.
    """
    ordered, order = columns.sort(dim=1)
    place = torch.searchsorted(ordered, slots.contiguous()).clamp_max(columns.shape[1] - 1)
    found = ordered.gather(1, place) == slots
    return torch.where(slots < 0, -1, torch.where(found, order.gather(1, place), columns.shape[1]))


def excess(scores: torch.Tensor, bound: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The error of the module's description for selections of positions, int [rows, any], -1 padded: the largest of all rows.

    `scores` and `bound`: float32 [rows, n], -inf and 0 where nothing may be selected. Infinite where a selection holds such a place, holds
    one twice, or is of another size than the other.
    """
    count = [(selection >= 0).sum(dim=1) for selection in (ours, theirs)]
    # What is no position counts as the one column behind them, which may not be selected.
    nowhere = scores.shape[1]
    mine, other = (_members(selection.clamp_max(nowhere), nowhere + 1) for selection in (ours, theirs))
    scores, bound = (torch.nn.functional.pad(t, (0, 1), value=v) for t, v in ((scores, -math.inf), (bound, 0.0)))
    whole = (mine.sum(dim=1) == count[0]) & (other.sum(dim=1) == count[1]) & (count[0] == count[1])
    if not bool(whole.all()) or bool(((mine | other) & (scores == -math.inf)).any()):
        return math.inf
    only_mine, only_other = mine & ~other, other & ~mine
    differing = only_mine.any(dim=1)
    if not bool(differing.any()):
        return 0.0
    mine, other, scores, bound = (t[differing] for t in (only_mine, only_other, scores, bound))
    worst = 0.0
    for high, low in ((mine, other), (other, mine)):
        best = scores.masked_fill(~high, -math.inf).max(dim=1)
        least = scores.masked_fill(~low, math.inf).min(dim=1)
        room = bound.gather(1, best.indices[:, None]) + bound.gather(1, least.indices[:, None])
        apart = (best.values - least.values)[:, None]
        # Equal scores are no difference, even where rounding changes nothing.
        error = torch.where(apart > 0, apart / room, 0.0)
        worst = max(worst, float(error.max()))
    return worst


def _members(selection: torch.Tensor, width: int) -> torch.Tensor:
    """Which of 0 .. `width` - 1 each row of `selection` holds: bool [rows, width]."""
    held = torch.zeros(len(selection), width + 1, dtype=torch.bool, device=selection.device)
    held.scatter_(1, selection.long().masked_fill((selection < 0) | (selection > width), width), value=True)
    return held[:, :width]
