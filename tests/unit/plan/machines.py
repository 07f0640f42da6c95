"""Machines and plans for the tests of this directory: facts in, plan out, nothing read from the machine that tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.spec import load_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Service

INSTALLATION = Installation(python="/opt/dsv41/bin/python", release="r1")
# The GPU a profile is for, and how many the node has.
GPUS = {
    "h200x8": ((9, 0), 8),
    "b200x8": ((10, 0), 8),
    "gb300x4": ((10, 3), 4),
    "rtxpro6000x8": ((12, 0), 8),
    "h200x2-rank": ((9, 0), 2),
}


def plan_for(facts: Facts, profile: str, *overrides: str) -> Plan:
    """Return the plan of `profile` with `overrides` on the machine `facts`."""
    return make_plan(load_spec(profile=profile, overrides=overrides), facts, INSTALLATION)


def turn_into(facts: Facts, profile: str) -> Facts:
    """Return the machine with the GPUs `profile` is for; the embedded profile takes any machine."""
    if profile not in GPUS:
        return facts
    capability, count = GPUS[profile]
    gpus = (gpu.model_copy(update={"compute_capability": capability}) for gpu in facts.gpus)
    # The same number on each of two sockets.
    kept = [gpu for gpu in gpus if gpu.index % 4 < count // 2]
    renumbered = (gpu.model_copy(update={"index": index}) for index, gpu in enumerate(kept))
    return facts.model_copy(update={"gpus": tuple(renumbered)})


def seat_gpus(facts: Facts, nodes: Sequence[int | None]) -> Facts:
    """Return the machine with one GPU for each of `nodes`, on that NUMA node; None: the firmware does not say."""
    pattern = facts.gpus[0]
    gpus = tuple(pattern.model_copy(update={"index": index, "numa_node": node}) for index, node in enumerate(nodes))
    return facts.model_copy(update={"gpus": gpus})


def make(facts: Facts, profile: str, shape: str, *overrides: str) -> Plan:
    """Return the plan of `shape` on a machine of the profile's kind."""
    state = ["node.state_dir=/state"] if profile == "embedded" else []
    return plan_for(turn_into(facts, profile), profile, f"shape={shape}", *state, *overrides)


def split(service: Service) -> tuple[list[str], list[str]]:
    """Return the launcher and the flags of a command."""
    words = 4 if service.kind == "router" else 3
    return list(service.argv[:words]), list(service.argv[words:])
