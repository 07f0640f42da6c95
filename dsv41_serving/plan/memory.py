"""The memory budget: what the plan needs against what the machine has. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.plan.model import MemoryLine

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Placement
    from dsv41_serving.spec.model import NodeSpec


def budget_memory(spec: NodeSpec, facts: Facts, placements: Mapping[str, Placement]) -> tuple[MemoryLine, ...]:
    """Return the budget, one line per pool, in bytes: host in all, host per NUMA node, the smallest GPU of each engine, /dev/shm."""
    memory = spec.memory
    host = {name: memory.host_bytes_per_engine + _engram_on_host(spec, name) for name in placements}
    lines = [
        MemoryLine(
            what="host memory", needed=sum(host.values()), available=facts.memory.available_bytes, by_engine=host
        )
    ]
    for node in facts.numa:
        needed = sum(host[name] for name, place in placements.items() if place.numa_node == node.id)
        if needed:
            lines.append(MemoryLine(what=f"NUMA node {node.id}", needed=needed, available=node.memory_total_bytes))
    total = {gpu.index: gpu.memory_total_bytes for gpu in facts.gpus}
    for name, place in placements.items():
        if place.gpus:
            needed = (
                memory.weights_bytes_per_gpu * 4 // spec.engines[name].tp
            )  # the profile gives the share of a TP4 rank
            smallest = min(total[index] for index in place.gpus)
            lines.append(MemoryLine(what=f"each GPU of {name}", needed=needed, available=smallest))
    if memory.shm_bytes:
        lines.append(
            MemoryLine(what="shared memory (/dev/shm)", needed=memory.shm_bytes, available=facts.memory.shm_free_bytes)
        )
    return tuple(lines)


def check_budget(lines: tuple[MemoryLine, ...], profile: str, engines: Collection[str]) -> None:
    """Raise InputError for the first line that does not fit when `engines` start; a pool of unknown size passes.

    Of a pool whose free part is counted, only what these engines take must be there: the others may already hold theirs.
    """
    for line in lines if engines else ():
        needed = sum(line.by_engine.get(name, 0) for name in engines) if line.by_engine else line.needed
        if line.available is not None and needed > line.available:
            raise InputError(
                f"{line.what}: {gib(needed)} needed, {gib(line.available)} available, {gib(needed - line.available)} short",
                where=f"profile {profile}, table memory",
                remedy="free memory, or choose a smaller shape",
            )


def gib(count: int) -> str:
    """Return bytes as GiB with one decimal."""
    return f"{count / 2**30:.1f} GiB"


def _engram_on_host(spec: NodeSpec, name: str) -> int:
    copies = {"none": 0, "hbm": 0, "host_shared": 1, "host_per_rank": spec.engines[name].tp}[spec.memory.engram]
    return copies * spec.memory.engram_bytes
