"""Run independent pieces of torch work side by side, one core each.

Threads over whole tasks instead of torch's own threads inside every operation, for two reasons: the number of cores
then cannot change a bit of any result, and a busy neighbour delays one task instead of every operation, each of which
would otherwise end in a barrier.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_WORKERS = 4  # each holds activations or a KV cache of some hundred MB


def map_on_cores(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `function(item)` for each item, in the order of `items`, computed on the cores this process may use."""
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(function, items)


@contextmanager
def one_core_per_operation() -> Iterator[None]:
    """Keep torch from splitting operations over threads, and restore its setting afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
