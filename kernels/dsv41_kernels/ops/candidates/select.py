# ruff: noqa: ANN201, PLR2004
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The k largest of a tile of scores that one program holds in registers, in ascending order of position.

The threshold is found by bisection over the integers that order like the floats: a count per step, no histogram in memory, no
sort. It stops as soon as a threshold separates exactly k scores, on real scores after about 15 steps. What is taken is then
written at its rank, one prefix sum over all scores, so positions come out ascending and of equal scores the lower positions
win: the result is a function of the scores alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**31))
HIGHEST = tl.constexpr(2**31 - 1)


@triton.jit
def order(score):
    """Integers that order like float32 `score`; -0.0 equals 0.0. Not for NaN."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def take_largest(key, k):
    """Which of `key` [N] (int32, N <= 16384; LOWEST where there is none) are the `k` largest.

    Returns taken [N], rank [N] (of what is taken, by position: 0..count - 1), count = min(k, number of keys).
    """
    available = tl.sum((key > LOWEST).to(tl.int32), axis=0)
    low = tl.min(tl.where(key > LOWEST, key, HIGHEST), axis=0)
    high = tl.max(key, axis=0)
    if available <= k:
        high = low  # everything is taken: the smallest key is the threshold
    # Largest threshold that k keys reach: they reach `low`, and only they where the bisection ends early.
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # mean rounded up, without overflow
        reach = tl.sum((key >= middle).to(tl.int32), axis=0)
        high = tl.where(reach > k, high, tl.where(reach == k, middle, middle - 1))
        low = tl.where(reach >= k, middle, low)
    above = (key > low).to(tl.int32)
    counts = tl.cumsum(above | ((key == low).to(tl.int32) << 16), axis=0)  # both prefix sums: neither exceeds 2^14
    room = k - tl.sum(above, axis=0)  # for keys that equal the threshold
    taken = (key > low) | ((key == low) & ((counts >> 16) <= room))
    rank = (counts & 0xFFFF) + tl.minimum(counts >> 16, room) - 1
    return taken, rank, tl.minimum(available, k)
