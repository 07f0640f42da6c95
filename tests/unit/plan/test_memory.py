"""The memory budget: what is needed, what is there, and by how much it falls short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import EXIT_BAD_INPUT, InputError
from dsv41_serving.plan.memory import check_budget, gib
from dsv41_serving.plan.model import MemoryLine
from tests.unit.plan.machines import plan_for, turn_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.facts import Facts

GIB = 1 << 30
GPU = 143771 << 20


def test_tables_in_hbm_cost_no_host_memory(two_sockets: Facts) -> None:
    """H200: 40 GB a engine on its node, 119.83 GiB on each GPU, 34 GB of shared memory."""
    assert plan_for(two_sockets, "h200x8").memory == (
        MemoryLine(what="host memory", needed=80_000_000_000, available=1536 * GIB),
        MemoryLine(what="NUMA node 0", needed=40_000_000_000, available=1024 * GIB),
        MemoryLine(what="NUMA node 1", needed=40_000_000_000, available=1024 * GIB),
        MemoryLine(what="each GPU of prefill", needed=128_670_000_000, available=GPU),
        MemoryLine(what="each GPU of decode", needed=128_670_000_000, available=GPU),
        MemoryLine(what="shared memory (/dev/shm)", needed=34_000_000_000, available=1023 * GIB),
    )


@pytest.mark.parametrize(
    ("where", "engine_bytes"),
    [
        ("none", 40_000_000_000),
        ("hbm", 40_000_000_000),
        ("host_shared", 40_000_000_000 + 203_000_000_000),
        ("host_per_rank", 40_000_000_000 + 4 * 203_000_000_000),
    ],
)
def test_tables_on_the_host_count_per_copy(two_sockets: Facts, where: str, engine_bytes: int) -> None:
    """One for an engine, or one for each of its ranks."""
    lines = plan_for(two_sockets, "h200x8", f"memory.engram={where}").memory
    assert [line.needed for line in lines[:3]] == [2 * engine_bytes, engine_bytes, engine_bytes]


def test_both_engines_of_one_socket_share_its_memory(facts_of: Callable[[str], Facts]) -> None:
    """Both are bound to the same node."""
    lines = plan_for(facts_of("one-socket-8gpu"), "h200x8").memory
    assert [(line.what, line.needed) for line in lines if line.what.startswith("NUMA")] == [
        ("NUMA node 0", 80_000_000_000)
    ]


def test_an_unbound_engine_counts_for_no_node(two_sockets: Facts) -> None:
    """TP8 over both sockets takes from the whole machine."""
    lines = plan_for(two_sockets, "h200x8", "shape=tp8").memory
    assert [line.what for line in lines] == ["host memory", "each GPU of whole", "shared memory (/dev/shm)"]


@pytest.mark.parametrize(("tp", "share"), [(2, 257_340_000_000), (4, 128_670_000_000)])
def test_weights_are_split_over_the_ranks(two_sockets: Facts, tp: int, share: int) -> None:
    """The profile gives the share of one of four."""
    lines = plan_for(two_sockets, "h200x8", f"engines.prefill.tp={tp}").memory
    assert next(line.needed for line in lines if line.what == "each GPU of prefill") == share


def test_the_smallest_gpu_of_a_group_decides(two_sockets: Facts) -> None:
    """Every rank holds an equal share."""
    gpus = [
        gpu.model_copy(update={"memory_total_bytes": 100 * GIB}) if gpu.index == 2 else gpu for gpu in two_sockets.gpus
    ]
    lines = plan_for(two_sockets.model_copy(update={"gpus": tuple(gpus)}), "h200x8").memory
    assert [line.available for line in lines if line.what.startswith("each GPU")] == [100 * GIB, GPU]


def test_the_embedded_profile_needs_host_memory_alone(facts_of: Callable[[str], Facts]) -> None:
    """3 GB an engine, on a laptop with 24 GiB free."""
    assert plan_for(facts_of("laptop"), "embedded").memory == (
        MemoryLine(what="host memory", needed=6_000_000_000, available=24 * GIB),
    )


@pytest.mark.parametrize(("profile", "shape"), [("h200x8", "pd"), ("h200x8", "tp8"), ("rtxpro6000x8", "pd")])
def test_profiles_fit_the_machine_they_are_for(two_sockets: Facts, profile: str, shape: str) -> None:
    """A profile that its own budget refuses would be no use."""
    check_budget(plan_for(turn_into(two_sockets, profile), profile, f"shape={shape}").memory, profile)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            MemoryLine(what="host memory", needed=80 * GIB, available=63 * GIB + GIB // 2),
            (
                "profile h200x8, table memory: host memory: 80.0 GiB needed, 63.5 GiB available, 16.5 GiB short; "
                "free memory, or choose a smaller shape"
            ),
        ),
        (
            MemoryLine(what="each GPU of decode", needed=150 * GIB, available=141 * GIB),
            (
                "profile h200x8, table memory: each GPU of decode: 150.0 GiB needed, 141.0 GiB available, 9.0 GiB short; "
                "free memory, or choose a smaller shape"
            ),
        ),
    ],
)
def test_too_little_memory_is_said_by_how_much(line: MemoryLine, message: str) -> None:
    """The first pool that does not fit, as one line of bad input."""
    fits = MemoryLine(what="other", needed=1, available=1)
    with pytest.raises(InputError) as error:
        check_budget((fits, line), "h200x8")
    assert str(error.value) == message
    assert error.value.exit_code == EXIT_BAD_INPUT


def test_what_just_fits_and_what_nobody_knows_passes() -> None:
    """An unknown size is no reason to refuse."""
    unknown = MemoryLine(what="host memory", needed=80 * GIB, available=None)
    exact = MemoryLine(what="host memory", needed=80 * GIB, available=80 * GIB)
    check_budget((exact, unknown), "h200x8")
    with pytest.raises(InputError):
        check_budget((exact.model_copy(update={"available": 80 * GIB - 1}),), "h200x8")


def test_bytes_are_said_in_gib() -> None:
    """With one decimal, as people compare memory."""
    assert (gib(0), gib(GIB), gib(128_670_000_000)) == ("0.0 GiB", "1.0 GiB", "119.8 GiB")
