"""The memory budget: what the plan needs against what the machine has. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.plan.model import MemoryLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Placement, Service
    from dsv41_serving.spec.model import NodeSpec


HOST = "host memory"
SHARED = "shared memory (/dev/shm)"
_NODE = "NUMA node "
_GPU = "each GPU of "


def needs_of(spec: NodeSpec, name: str, placement: Placement) -> dict[str, int]:
    """Return what engine `name` takes from each pool, in bytes: host in all, its NUMA node, each of its GPUs, /dev/shm."""
    memory = spec.memory
    host = memory.host_bytes_per_engine + _engram_on_host(spec, name)
    needs = {HOST: host}
    if placement.numa_node is not None:
        needs[f"{_NODE}{placement.numa_node}"] = host
    if placement.gpus:
        # The profile gives the share of a TP4 rank.
        needs[f"{_GPU}{name}"] = memory.weights_bytes_per_gpu * 4 // spec.engines[name].tp
    needs[SHARED] = memory.shm_bytes // len(spec.active_engines())
    return {pool: needed for pool, needed in needs.items() if needed or pool == HOST}


def budget_memory(engines: Sequence[Service], facts: Facts) -> tuple[MemoryLine, ...]:
    """Return the budget of starting `engines` on the machine `facts`: one line per pool, host first, shared memory last."""
    available = {HOST: facts.memory.available_bytes, SHARED: facts.memory.shm_free_bytes}
    available |= {f"{_NODE}{node.id}": node.memory_total_bytes for node in facts.numa}
    total = {gpu.index: gpu.memory_total_bytes for gpu in facts.gpus}
    needed: dict[str, int] = {}
    for engine in engines:
        for pool, count in engine.memory.items():
            needed[pool] = needed.get(pool, 0) + count
        if all(index in total for index in engine.placement.gpus) and engine.placement.gpus:
            available[f"{_GPU}{engine.name}"] = min(total[index] for index in engine.placement.gpus)
    rank = {HOST: 0, SHARED: 3}
    pools = sorted(needed, key=lambda pool: rank.get(pool, 1 if pool.startswith(_NODE) else 2))
    return tuple(MemoryLine(what=pool, needed=needed[pool], available=available.get(pool)) for pool in pools)


def check_budget(lines: tuple[MemoryLine, ...], profile: str) -> None:
    """Raise InputError for the first line that does not fit; a pool of unknown size passes."""
    for line in lines:
        if line.available is not None and line.needed > line.available:
            raise InputError(
                f"{line.what}: {gib(line.needed)} needed, {gib(line.available)} available, {gib(line.needed - line.available)} short",
                where=f"profile {profile}, table memory",
                remedy="free memory, or choose a smaller shape",
            )


def gib(count: int) -> str:
    """Return bytes as GiB with one decimal."""
    return f"{count / 2**30:.1f} GiB"


def _engram_on_host(spec: NodeSpec, name: str) -> int:
    copies = {"none": 0, "hbm": 0, "host_shared": 1, "host_per_rank": spec.engines[name].tp}[spec.memory.engram]
    return copies * spec.memory.engram_bytes
