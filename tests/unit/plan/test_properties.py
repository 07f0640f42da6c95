"""What holds of every placement and of every set of ports, on machines and nodes nobody thought of."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv41_serving.errors import InputError
from dsv41_serving.plan import make_plan
from dsv41_serving.plan.placement import place_engines
from dsv41_serving.spec import LoadedSpec, NodeSpec, load_spec
from tests.unit.plan.machines import INSTALLATION, seat_gpus

if TYPE_CHECKING:
    from dsv41_serving.facts import Facts
    from dsv41_serving.plan.model import Placement

SIZES = st.sampled_from([1, 2, 3, 4, 8])
# Fixtures of this file are read-only machines and descriptions, so sharing them between examples is sound.
examine = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def node() -> NodeSpec:
    """Return the description of an H200 node with a pair of engines."""
    return load_spec(profile="h200x8").spec


@st.composite
def engine_wishes(draw: st.DrawFn, gpu_count: int) -> dict[str, Any]:
    """Draw what an operator may write for one engine."""
    size = draw(st.integers(1, 4))
    wish: dict[str, Any] = {"tp": size, "cross_socket": draw(st.booleans())}
    if size <= gpu_count and draw(st.booleans()):
        absent = int(draw(st.integers(0, 9)) == 0)
        wish["gpus"] = draw(st.permutations(range(gpu_count + absent)))[:size]
    return wish


@st.composite
def machines_and_wishes(draw: st.DrawFn) -> tuple[list[int | None], dict[str, dict[str, Any]]]:
    """Draw the NUMA node of each GPU, and what is asked for."""
    nodes = draw(st.lists(st.sampled_from([0, 1, 2, None]), min_size=3, max_size=12))
    return nodes, {name: draw(engine_wishes(len(nodes))) for name in ("prefill", "decode")}


def wish(node: NodeSpec, wishes: dict[str, dict[str, Any]]) -> NodeSpec:
    """Return the description with the wishes in it."""
    engines = {name: node.engines[name].model_copy(update=update) for name, update in wishes.items()}
    return node.model_copy(update={"engines": {**node.engines, **engines}})


def place(spec: NodeSpec, facts: Facts) -> dict[str, Placement] | None:
    """Return the placement, or None when it is refused."""
    try:
        return place_engines(spec, facts)
    except InputError:
        return None


@examine
@given(drawn=machines_and_wishes())
def test_an_accepted_placement_is_sound(two_sockets: Facts, node: NodeSpec, drawn: Any) -> None:
    """GPUs exist, nobody shares one, groups stay on a node unless allowed, and binding follows the GPUs."""
    nodes, wishes = drawn
    facts, spec = seat_gpus(two_sockets, nodes), wish(node, wishes)
    placed = place(spec, facts)
    if placed is None:
        return
    used = [gpu for placement in placed.values() for gpu in placement.gpus]
    assert len(used) == len(set(used))
    assert set(used) <= set(range(len(nodes)))
    cpus = {numa.id: numa.cpus for numa in facts.numa}
    for name, placement in placed.items():
        engine = spec.engines[name]
        assert len(placement.gpus) == engine.tp
        if engine.gpus != "auto":
            assert list(placement.gpus) == list(engine.gpus)
        homes = {nodes[gpu] for gpu in placement.gpus} - {None}
        assert engine.cross_socket or len(homes) <= 1
        assert placement.numa_node == (homes.pop() if len(homes) == 1 else None)
        assert placement.cpus == cpus.get(placement.numa_node, ())


@examine
@given(drawn=machines_and_wishes(), data=st.data())
def test_placement_depends_on_the_machine_alone(
    two_sockets: Facts, node: NodeSpec, drawn: Any, data: st.DataObject
) -> None:
    """The same twice, and in whatever order the driver lists the GPUs."""
    nodes, wishes = drawn
    facts, spec = seat_gpus(two_sockets, nodes), wish(node, wishes)
    shuffled = facts.model_copy(update={"gpus": tuple(data.draw(st.permutations(facts.gpus)))})
    assert place(spec, facts) == place(spec, facts) == place(spec, shuffled)


@st.composite
def roomy_machines(draw: st.DrawFn) -> tuple[list[int], tuple[int, int]]:
    """Draw two sizes and the NUMA node of each GPU, where either node could hold either engine."""
    sizes = draw(st.tuples(SIZES, SIZES))
    nodes = [one for one in (0, 1) for _ in range(max(sizes) + draw(st.integers(0, 9)))]
    return draw(st.permutations(nodes)), sizes


@examine
@given(drawn=roomy_machines())
def test_prefill_and_decode_part_whenever_they_can(
    two_sockets: Facts, node: NodeSpec, drawn: tuple[list[int], tuple[int, int]]
) -> None:
    """Each gets a node of its own, even when one could hold both."""
    nodes, sizes = drawn
    spec = wish(node, {"prefill": {"tp": sizes[0]}, "decode": {"tp": sizes[1]}})
    placed = place_engines(spec, seat_gpus(two_sockets, nodes))
    assert (placed["prefill"].numa_node, placed["decode"].numa_node) == (0, 1)


@examine
@given(nodes=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=12), size=SIZES)
def test_equal_groups_are_refused_only_when_they_do_not_fit(
    two_sockets: Facts, node: NodeSpec, nodes: list[int], size: int
) -> None:
    """Counting whole groups per node says whether two fit."""
    spec = wish(node, {"prefill": {"tp": size}, "decode": {"tp": size}})
    fit = sum(count // size for count in Counter(nodes).values()) >= 2
    assert (place(spec, seat_gpus(two_sockets, nodes)) is not None) is fit


@examine
@given(
    ports=st.one_of(st.lists(st.integers(30000, low), min_size=5, max_size=5, unique=True) for low in (30009, 30999))
)
def test_a_plan_is_made_exactly_when_all_ports_differ(two_sockets: Facts, ports: list[int]) -> None:
    """Every engine also binds the two ports after its own; an error names both who want the port."""
    prefill, decode, bootstrap, api, metrics = ports
    wanted = {
        "prefill (http": prefill,
        "prefill (rendezvous": prefill + 1,
        "prefill (nixl": prefill + 2,
        "prefill (bootstrap": bootstrap,
        "decode (http": decode,
        "decode (rendezvous": decode + 1,
        "decode (nixl": decode + 2,
        "router (http": api,
        "router (metrics": metrics,
    }
    loaded = _set_ports(prefill, decode, bootstrap, api, metrics)
    if len(set(wanted.values())) == len(wanted):
        plan = make_plan(loaded, two_sockets, INSTALLATION)
        assert sorted(p for service in plan.services for p in service.ports.values()) == sorted(wanted.values())
        return
    with pytest.raises(InputError) as error:
        make_plan(loaded, two_sockets, INSTALLATION)
    found = re.search(
        r"port (\d+) is wanted by (\w+ \(\w+), from ([\w.]+)\) and by (\w+ \(\w+), from", str(error.value)
    )
    assert found is not None
    assert wanted[found[2]] == wanted[found[4]] == int(found[1])
    assert found[2] != found[4]


_PAIR = load_spec(profile="h200x8")


def _set_ports(prefill: int, decode: int, bootstrap: int, api: int, metrics: int) -> LoadedSpec:
    spec = wish(_PAIR.spec, {"prefill": {"port": prefill, "bootstrap_port": bootstrap}, "decode": {"port": decode}})
    router = spec.router.model_copy(update={"port": api, "metrics_port": metrics})
    return LoadedSpec(spec=spec.model_copy(update={"router": router}), origins=_PAIR.origins)
