"""Put what engines take of host memory against what the machine has, in all and on each NUMA node. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.plan.placement import place_engines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.facts.model import Facts
    from dsv41_serving.spec.model import NodeSpec

TOTAL = "host memory"
_NODE = "memory of NUMA node "


@dataclass(frozen=True)
class Host:
    """The machine that a shape is for: bytes of each pool of host memory, and the pools that each engine on it takes from."""

    pools: Mapping[str, int]
    engines: Mapping[str, tuple[str, ...]]

    def find_shortages(self, needed: Mapping[str, int]) -> dict[str, int]:
        """Return pool -> bytes that are missing when each engine takes what `needed` says, in bytes."""
        short = {}
        for pool, size in self.pools.items():
            taken = sum(needed[engine] for engine, pools in self.engines.items() if pool in pools)
            if taken > size:
                short[pool] = taken - size
        return short


def find_host(spec: NodeSpec, facts: Facts, shape: str, total_bytes: int | None = None) -> Host:
    """Return the machine of `facts` as host of `shape`, or one of `total_bytes` of which no NUMA node is known.

    An engine takes its host memory from the NUMA node of its GPUs, as the plan binds it. Where the shape cannot be placed here,
    or an engine has GPUs on several nodes, only the total counts.
    """
    spec = spec.model_copy(update={"shape": shape})
    names = [name for name in spec.active_engines() if spec.runs_here(name)]
    if total_bytes is not None:
        return Host({TOTAL: total_bytes}, dict.fromkeys(names, (TOTAL,)))
    try:
        homes = {name: placement.numa_node for name, placement in place_engines(spec, facts).items()}
    except InputError:
        homes = {}
    pools = {TOTAL: facts.memory.total_bytes, **{f"{_NODE}{node.id}": node.memory_total_bytes for node in facts.numa}}
    taken = {name: (TOTAL,) if homes.get(name) is None else (TOTAL, f"{_NODE}{homes[name]}") for name in names}
    return Host({pool: size for pool, size in pools.items() if size is not None}, taken)
