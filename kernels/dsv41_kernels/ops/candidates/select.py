# ruff: noqa: ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The k largest of a tile of scores that one program holds in registers, in ascending order of position.

The threshold is found by bisection over the integers that order like the floats: a count per step, no histogram in memory, no
sort. It stops as soon as a threshold separates exactly k scores, on real scores after 15 to 20 steps. What is taken is then
written at its rank, one prefix sum over all scores, so positions come out ascending and of equal scores the lower positions
win: the result is a function of the scores alone.

A tile is [rows, 128] in order of position: a row lies in one warp, so that only row totals cross warps in the prefix sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = tl.constexpr(128)


@triton.jit
def places(ROWS: tl.constexpr):
    """Positions 0 .. 128 * ROWS - 1 of a tile [ROWS, 128]."""
    return tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _order(score):
    """The integer that orders like float32 `score`."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(order):
    """Inverse of `_order`; never -0.0, so that a difference of equal zeros has no sign."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True) + 0.0


@triton.jit
def _prefix(counts):
    """Inclusive prefix sum of int32 [ROWS, 128] in order of position."""
    totals = tl.sum(counts, axis=1)
    before = tl.cumsum(totals, axis=0) - totals
    return tl.cumsum(counts, axis=1) + before[:, None]


@triton.jit
def rank_largest(score, available, k):
    """Where each of `score` [ROWS, 128] (float32, at most 2^14; NaN where there is none) goes among the `k` largest.

    `available` is the number of scores that are not NaN. Returns int32 [ROWS, 128]: the rank by position, 0..min(k, available)
    - 1, of what is taken, else -1. A NaN is never taken: a minimum, a maximum and a comparison pass over it.
    """
    low = tl.full((), 0, tl.int32)
    high = low
    if available > k:  # more than k scores lie above `low`, fewer than k above `high`
        high = _order(tl.max(score))
        low = _order(tl.min(score)) - 1
    while low + 1 < high:
        middle = (low & high) + ((low ^ high) >> 1)  # mean rounded down, without overflow
        # The sign of a difference counts at the rate of the adder; a comparison would cost twice that.
        above = -tl.sum((_value(middle) - score).to(tl.int32, bitcast=True) >> 31)
        low = tl.where(above > k, middle, tl.where(above == k, middle - 1, low))
        high = tl.where(above > k, high, middle)
    threshold = _value(high)
    above = (score > threshold).to(tl.int32)
    if available <= k:  # everything is taken
        above = (score > float("-inf")).to(tl.int32)
    sure = tl.sum(above)
    if sure == tl.minimum(available, k):
        place = tl.where(above != 0, _prefix(above), 0) - 1
    else:  # scores equal to the threshold fill the rest from below; both prefix sums in one, neither exceeds 2^14
        tie = (score == threshold).to(tl.int32)
        counts = _prefix(above | (tie << 16))
        room = k - sure
        taken = (above != 0) | ((tie != 0) & ((counts >> 16) <= room))
        place = tl.where(taken, (counts & 0xFFFF) + tl.minimum(counts >> 16, room), 0) - 1
    return place
