"""Does every group of GPUs sit beside its CPUs and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.plan.memory import gib
from dsv41_serving.preflight.check import Check, engines_of, failed, join_gpus, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_CPUS_PER_RANK = 4


def judge_known(scene: Scene) -> Outcome | None:
    """Return whether the firmware says where the GPUs are."""
    if len(scene.facts.numa) == 1:
        return passed("one NUMA node")
    unknown = [gpu for gpu in scene.facts.gpus if gpu.numa_node is None]
    if unknown:
        return warned(
            f"the firmware names no node for GPU {join_gpus(unknown)}",
            f"cat /sys/bus/pci/devices/{unknown[0].pci_address}/numa_node; a newer firmware may say it, else name the GPUs in engines.NAME.gpus",
        )
    return passed(f"{len(scene.facts.numa)} nodes, every GPU has one")


def judge_groups(scene: Scene) -> Outcome | None:
    """Return whether each group stays on one node."""
    if len(scene.facts.numa) == 1:
        return None
    spread = [
        engine.name for engine in scene.plan.engines if engine.placement.gpus and engine.placement.numa_node is None
    ]
    if spread:
        return warned(
            f"{', '.join(spread)} spans sockets: host tables and pinned buffers lie on one of them",
            "dsv41 plan; choose a shape whose groups fit one node, or keep cross_socket knowingly",
        )
    return passed(", ".join(f"{engine.name} on node {engine.placement.numa_node}" for engine in scene.plan.engines))


def judge_apart(scene: Scene) -> Outcome | None:
    """Return whether prefill and decode use different sockets where there are two."""
    nodes = {engine.placement.numa_node for kind in ("prefill", "decode") for engine in engines_of(scene.plan, kind)}
    if len(scene.facts.numa) == 1 or not scene.hands_off or None in nodes:
        return None
    if len(nodes) == 1:
        return warned(
            f"prefill and decode share node {nodes.pop()}",
            "leave engines.NAME.gpus at 'auto', or give each its own socket",
        )
    return passed("each has a socket of its own")


def judge_memory(scene: Scene) -> Outcome | None:
    """Return whether each node has free memory for what its engines pin there."""
    needs = {line.what: line.needed for line in scene.plan.memory if line.what.startswith("NUMA node ")}
    if not needs:
        return None
    free = {f"NUMA node {node.id}": node.memory_free_bytes for node in scene.facts.numa}
    short = {what: needed for what, needed in needs.items() if (free.get(what) or 0) < needed}
    if short:
        named = ", ".join(
            f"{what}: {gib(needed)} needed, {gib(free.get(what) or 0)} free" for what, needed in short.items()
        )
        return failed(
            named, "numactl --hardware; page cache counts as used: echo 1 | sudo tee /proc/sys/vm/drop_caches"
        )
    return passed(", ".join(f"{what}: {gib(needed)} of {gib(free[what] or 0)} free" for what, needed in needs.items()))


def judge_cpus(scene: Scene) -> Outcome | None:
    """Return whether each engine has CPUs enough for its ranks on its node."""
    thin = [
        engine.name
        for engine in scene.plan.engines
        if engine.placement.cpus and len(engine.placement.cpus) < _CPUS_PER_RANK * len(engine.placement.gpus)
    ]
    if thin:
        return warned(
            f"{', '.join(thin)}: fewer than {_CPUS_PER_RANK} CPUs for each rank",
            "dsv41 plan; take CPUs from other services",
        )
    return passed(
        ", ".join(
            f"{engine.name}: {len(engine.placement.cpus) or len(scene.facts.cpus)}" for engine in scene.plan.engines
        )
    )


def judge_balancing(scene: Scene) -> Outcome | None:
    """Return whether the kernel leaves pages where they were put."""
    if scene.facts.kernel.numa_balancing:
        return warned(
            "kernel.numa_balancing = 1 moves pages of bound engines", "sudo sysctl -w kernel.numa_balancing=0"
        )
    return passed("off")


def judge_owner(scene: Scene) -> Outcome | None:
    """Return whether binding has one owner."""
    double = [engine.name for engine in scene.plan.engines if engine.env.get("SGLANG_NUMA_BIND_V2", "1") != "0"]
    if double:
        return warned(
            f"{', '.join(double)}: SGLang binds as well, through a script in the temporary directory that hangs where it may not run",
            "set engine.env.SGLANG_NUMA_BIND_V2 = '0'",
        )
    return passed("the plan alone binds")


CHECKS = (
    Check(
        "known",
        "Does the firmware say where the GPUs are?",
        "kernel documentation, numa_node of a PCI device",
        judge_known,
        each_gpu=True,
    ),
    Check(
        "groups",
        "Does each group stay on one node?",
        "sglang#40106: the shared table lies on the node of rank 0",
        judge_groups,
        each_gpu=True,
        needs_plan=True,
    ),
    Check(
        "apart",
        "Do prefill and decode use different sockets?",
        "memory bandwidth of a socket is shared",
        judge_apart,
        each_gpu=True,
        needs_plan=True,
    ),
    Check(
        "memory",
        "Has each node free memory for its engines?",
        "sglang#40106",
        judge_memory,
        each_gpu=True,
        needs_plan=True,
    ),
    Check(
        "cpus",
        "Has each rank CPUs enough?",
        "a scheduler, a detokenizer and transfer threads per rank",
        judge_cpus,
        each_gpu=True,
        needs_plan=True,
    ),
    Check(
        "balancing",
        "Does the kernel leave pages where they are?",
        "kernel documentation, numa_balancing",
        judge_balancing,
        needs_gpus=True,
    ),
    Check("owner", "Has binding one owner?", "sglang#40627", judge_owner, needs_gpus=True, needs_plan=True),
)
