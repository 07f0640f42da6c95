"""Tasks side by side: ordered, exact, and without a trace in torch's settings."""

from __future__ import annotations

import threading

import pytest
import torch

from dsv41_serving.embedded.parallel import map_on_cores, one_core_per_operation


def test_results_keep_the_order_of_the_items() -> None:
    """A first item that finishes last still comes first."""
    later = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            later.wait(0.2)
        later.set()
        return item * item

    assert list(map_on_cores(work, range(5))) == [0, 1, 4, 9, 16]


def test_every_task_runs_on_one_core() -> None:
    """Within a task torch does not split operations, so the number of cores cannot change a result."""
    assert set(map_on_cores(lambda _: torch.get_num_threads(), range(4))) == {1}


def test_an_error_in_a_task_reaches_the_caller() -> None:
    """It is raised where the results are read."""
    with pytest.raises(ZeroDivisionError):
        list(map_on_cores(lambda item: 1 / item, [1, 0]))


def test_the_thread_setting_is_restored() -> None:
    """Afterwards torch has the threads it had before, also when the work failed."""
    before = torch.get_num_threads()
    seen: list[int] = []
    with one_core_per_operation():
        seen.append(torch.get_num_threads())
    with pytest.raises(RuntimeError, match="no"):
        _fail()
    assert seen == [1]
    assert torch.get_num_threads() == before


def _fail() -> None:
    with one_core_per_operation():
        raise RuntimeError("no")
