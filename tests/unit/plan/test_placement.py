"""Where engines go on the four machines, and what is said when they cannot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import EXIT_BAD_INPUT, InputError
from dsv41_serving.facts import parse_cpu_list
from dsv41_serving.plan.model import Placement
from tests.unit.plan.machines import plan_for, seat_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.facts import Facts

    FactsOf = Callable[[str], Facts]

NODE_0 = parse_cpu_list("0-47,96-143")
NODE_1 = parse_cpu_list("48-95,144-191")
SWAP = re.compile(r"exchange ([\d,]+) for ([\d,]+)(?: \(now of (\w+)\))?: gpus = \[([\d, ]+)\]")


def place(facts: Facts, *overrides: str) -> dict[str, Placement]:
    """Return the placement of each engine of an H200 node."""
    return {engine.name: engine.placement for engine in plan_for(facts, "h200x8", *overrides).engines}


def refuse(facts: Facts, *overrides: str, profile: str = "h200x8") -> str:
    """Return the line that says why the node does not fit the machine."""
    with pytest.raises(InputError) as error:
        plan_for(facts, profile, *overrides)
    assert error.value.exit_code == EXIT_BAD_INPUT
    assert "\n" not in str(error.value)
    return str(error.value)


def test_two_sockets_take_one_engine_each(two_sockets: Facts) -> None:
    """Each engine has the four GPUs of a node, its CPUs and its memory."""
    assert place(two_sockets) == {
        "prefill": Placement(gpus=(0, 1, 2, 3), numa_node=0, cpus=NODE_0),
        "decode": Placement(gpus=(4, 5, 6, 7), numa_node=1, cpus=NODE_1),
    }


def test_replicas_take_one_socket_each(two_sockets: Facts) -> None:
    """The fallback of two TP4 engines is placed like the pair."""
    assert place(two_sockets, "shape=replicas") == {
        "replica0": Placement(gpus=(0, 1, 2, 3), numa_node=0, cpus=NODE_0),
        "replica1": Placement(gpus=(4, 5, 6, 7), numa_node=1, cpus=NODE_1),
    }


def test_tp8_spans_the_sockets_because_its_profile_says_so(two_sockets: Facts) -> None:
    """It belongs to no single node, so it is bound to none."""
    assert place(two_sockets, "shape=tp8") == {"whole": Placement(gpus=tuple(range(8)), numa_node=None, cpus=())}


def test_one_socket_holds_both_engines(facts_of: FactsOf) -> None:
    """There is no other node to spread to."""
    everything = parse_cpu_list("0-127")
    assert place(facts_of("one-socket-8gpu")) == {
        "prefill": Placement(gpus=(0, 1, 2, 3), numa_node=0, cpus=everything),
        "decode": Placement(gpus=(4, 5, 6, 7), numa_node=0, cpus=everything),
    }


def test_crosswise_gpus_are_grouped_by_socket(facts_of: FactsOf) -> None:
    """Neighbouring indices are not neighbours here."""
    assert place(facts_of("crosswise-8gpu")) == {
        "prefill": Placement(gpus=(0, 2, 4, 6), numa_node=0, cpus=NODE_0),
        "decode": Placement(gpus=(1, 3, 5, 7), numa_node=1, cpus=NODE_1),
    }


def test_small_groups_use_both_sockets(two_sockets: Facts) -> None:
    """Both would fit on one, but memory and root ports of the other would idle."""
    small = place(two_sockets, "engines.prefill.tp=2", "engines.decode.tp=2")
    assert (small["prefill"].gpus, small["decode"].gpus) == ((0, 1), (4, 5))


def test_explicit_gpus_are_taken_as_written_and_auto_takes_the_rest(two_sockets: Facts) -> None:
    """Even when the explicit engine comes second in the shape."""
    placed = place(two_sockets, "engines.decode.gpus=[3,2,1,0]")
    assert placed["decode"] == Placement(gpus=(3, 2, 1, 0), numa_node=0, cpus=NODE_0)
    assert placed["prefill"] == Placement(gpus=(4, 5, 6, 7), numa_node=1, cpus=NODE_1)


def test_a_group_over_sockets_is_allowed_when_asked_for(facts_of: FactsOf) -> None:
    """Then it is bound to no node."""
    overrides = [
        f"engines.{name}.{setting}"
        for name, gpus in (("prefill", "[0,1,2,3]"), ("decode", "[4,5,6,7]"))
        for setting in (f"gpus={gpus}", "cross_socket=true")
    ]
    placed = place(facts_of("crosswise-8gpu"), *overrides)
    assert placed["prefill"] == Placement(gpus=(0, 1, 2, 3), numa_node=None, cpus=())


def test_auto_crosses_sockets_only_when_no_node_is_large_enough(two_sockets: Facts) -> None:
    """With cross_socket set, the lowest free GPUs are taken."""
    wide = ["shape=tp8", 'engines.whole.gpus="auto"', "engines.whole.tp=6", "engines.whole.ep=1"]
    assert place(two_sockets, *wide)["whole"].gpus == (0, 1, 2, 3, 4, 5)
    assert place(two_sockets, *wide[:2], "engines.whole.tp=4")["whole"] == Placement(
        gpus=(0, 1, 2, 3), numa_node=0, cpus=NODE_0
    )


def test_gpus_without_a_known_node_are_placed_unbound(two_sockets: Facts) -> None:
    """Firmware that names no node on a machine with several: nothing to bind to, nothing to refuse."""
    placed = place(seat_gpus(two_sockets, [None] * 8))
    assert placed["prefill"] == Placement(gpus=(0, 1, 2, 3), numa_node=None, cpus=())


def test_an_engine_sees_its_gpus_and_no_others(facts_of: FactsOf) -> None:
    """By index in PCI order, which is how facts count them."""
    plan = plan_for(facts_of("crosswise-8gpu"), "h200x8")
    env = plan.service("decode").env
    assert (env["CUDA_DEVICE_ORDER"], env["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "1,3,5,7")


def test_a_laptop_runs_the_embedded_profile_anywhere(facts_of: FactsOf) -> None:
    """No GPU, no binding, and a GPU that happens to be there stays hidden."""
    for name in ("laptop", "two-socket-8gpu"):
        plan = plan_for(facts_of(name), "embedded")
        assert [engine.placement for engine in plan.engines] == [Placement(gpus=(), numa_node=None, cpus=())] * 2
        assert {engine.env["CUDA_VISIBLE_DEVICES"] for engine in plan.engines} == {""}
        assert {engine.env["SGLANG_PLATFORM"] for engine in plan.engines} == {"dsv41_embedded"}


def test_a_laptop_cannot_run_a_gpu_profile(facts_of: FactsOf) -> None:
    """The reason NVML gave is passed on."""
    assert refuse(facts_of("laptop")) == (
        "profile h200x8, key engine.device: this machine has no usable GPU (libnvidia-ml.so.1 was not found); "
        "run on the GPU node, or use --profile embedded here"
    )


def test_a_profile_of_another_architecture(two_sockets: Facts) -> None:
    """Its values were chosen for other kernels and another memory size."""
    assert refuse(two_sockets, profile="b200x8") == (
        "profile b200x8, key engine.compute_capability: "
        "GPU 0 (NVIDIA H200) has compute capability 9.0, the profile is for 10.0; "
        "choose the profile of this GPU; `dsv41 config profiles` lists them"
    )


def test_an_absent_gpu(two_sockets: Facts) -> None:
    """What is here is said."""
    assert refuse(two_sockets, "engines.prefill.gpus=[0,1,2,9]") == (
        "--set, key engines.prefill.gpus: GPU 9 does not exist here (found 0,1,2,3,4,5,6,7); "
        "list GPUs that `dsv41 facts` shows"
    )


def test_a_gpu_of_two_engines(two_sockets: Facts) -> None:
    """Both are named."""
    assert refuse(two_sockets, "engines.prefill.gpus=[0,1,2,3]", "engines.decode.gpus=[3,4,5,6]") == (
        "--set, key engines.decode.gpus: GPU 3 is listed twice, for prefill and for decode; "
        "give every GPU to one engine"
    )


def test_too_few_gpus(two_sockets: Facts) -> None:
    """The second engine finds none left."""
    four = two_sockets.model_copy(update={"gpus": two_sockets.gpus[:4]})
    assert refuse(four) == (
        "profile h200x8, key engines.decode.tp: needs 4 GPUs, 0 of 4 are free; "
        "choose a shape that fits this machine, or lower tp"
    )


def test_no_node_is_large_enough(two_sockets: Facts) -> None:
    """What each node has free is said."""
    assert refuse(two_sockets, "engines.prefill.tp=8") == (
        "default, key engines.prefill.gpus: no NUMA node has 8 free GPUs (node 0: 4, node 1: 4); "
        "lower tp, or set engines.prefill.cross_socket = true to allow it"
    )


def test_a_group_over_sockets_is_refused_with_the_swap_that_mends_it(facts_of: FactsOf) -> None:
    """The exchange is complete: who gives, who takes, and what the list is then."""
    crosswise = facts_of("crosswise-8gpu")
    line = refuse(crosswise, "engines.prefill.gpus=[0,1,2,3]", "engines.decode.gpus=[4,5,6,7]")
    assert line == (
        "--set, key engines.prefill.gpus: GPUs 0,1,2,3 sit on NUMA nodes 0,1; "
        "a TP group over sockets talks through both; exchange 1,3 for 4,6 (now of decode): gpus = [0, 2, 4, 6], "
        "or set engines.prefill.cross_socket = true to allow it"
    )
    placed = place(crosswise, "engines.prefill.gpus=[0, 2, 4, 6]", "engines.decode.gpus=[1,3,5,7]")
    assert (placed["prefill"].numa_node, placed["decode"].numa_node) == (0, 1)


def test_a_swap_prefers_gpus_nobody_has(two_sockets: Facts) -> None:
    """Then the other engine need not change."""
    pair = ["engines.prefill.tp=2", "engines.decode.tp=2", "engines.decode.gpus=[1,2]"]
    line = refuse(two_sockets, *pair, "engines.prefill.gpus=[0,4]")
    assert "exchange 4 for 3: gpus = [0, 3], or" in line
    assert place(two_sockets, *pair, "engines.prefill.gpus=[0, 3]")["prefill"].numa_node == 0


def test_no_swap_can_mend_a_group_that_fits_no_node(two_sockets: Facts) -> None:
    """Then none is named."""
    line = refuse(two_sockets, "shape=tp8", "engines.whole.cross_socket=false")
    assert line == (
        "profile h200x8, key engines.whole.gpus: GPUs 0,1,2,3,4,5,6,7 sit on NUMA nodes 0,1; "
        "a TP group over sockets talks through both; no NUMA node has enough GPUs: lower tp, "
        "or set engines.whole.cross_socket = true to allow it"
    )


@pytest.mark.parametrize("machine", ["two-socket-8gpu", "crosswise-8gpu"])
@pytest.mark.parametrize(
    "prefill", [(0, 1, 2, 4), (0, 3, 5, 6), (1, 4, 6, 7), (2, 3, 4, 5), (0, 1, 6, 7), (1, 2, 5, 7)]
)
def test_the_named_swap_is_accepted(facts_of: FactsOf, machine: str, prefill: tuple[int, ...]) -> None:
    """Both engines do what the line says, and the plan is made."""
    facts = facts_of(machine)
    gpus = {"prefill": set(prefill), "decode": set(range(8)) - set(prefill)}

    def settings() -> list[str]:
        return [f"engines.{name}.gpus={sorted(indices)}" for name, indices in gpus.items()]

    found = SWAP.search(refuse(facts, *settings()))
    assert found is not None
    leaving, joining = ({int(index) for index in found[group].split(",")} for group in (1, 2))
    assert found[3] == "decode"
    gpus["prefill"] = (gpus["prefill"] - leaving) | joining
    gpus["decode"] = (gpus["decode"] - joining) | leaving
    assert gpus["prefill"] == {int(index) for index in found[4].split(", ")}
    placed = place(facts, *settings())
    assert {placed["prefill"].numa_node, placed["decode"].numa_node} == {0, 1}
