"""Decide which GPUs and which NUMA node each engine gets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.plan.model import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsv41_serving.facts.model import Facts, Gpu
    from dsv41_serving.spec.model import EngineRole, NodeSpec


def place_engines(spec: NodeSpec, facts: Facts) -> dict[str, Placement]:
    """Return the placement of every active engine that runs on this host, by name.

    Explicit `gpus` are taken as written; 'auto' engines, in the order of the shape, each take the lowest free GPUs of a NUMA
    node that still has enough, a node without an engine first: prefill and decode land on different nodes of a two-socket
    machine, even when one node could hold both. Raises InputError when a GPU is absent or taken twice, when there are too few, or when a TP group
    would span NUMA nodes without `cross_socket`; the error then names the swap that mends it.
    """
    engines = {name: engine for name, engine in spec.active_engines().items() if spec.runs_here(name)}
    if spec.engine.device == "cpu" or not engines:
        return {name: Placement(gpus=(), numa_node=None, cpus=()) for name in engines}

    by_index = {gpu.index: gpu for gpu in facts.gpus}
    if not by_index:
        raise InputError(
            f"this machine has no usable GPU ({facts.gpu_problem or 'none found'})",
            where=f"profile {spec.profile}, key engine.device",
            remedy="run on the GPU node, or use --profile embedded here",
        )
    _check_architecture(spec, facts.gpus)
    taken: dict[int, str] = {}
    for name, engine in engines.items():
        if engine.gpus != "auto":
            _claim(name, engine.gpus, taken, by_index)
    placements = {}
    for name, engine in engines.items():
        gpus = list(engine.gpus) if engine.gpus != "auto" else _choose(name, engine, facts, taken)
        if engine.gpus == "auto":
            _claim(name, gpus, taken, by_index)
        placements[name] = _locate(name, engine, [by_index[i] for i in gpus], facts, taken)
    return placements


def _check_architecture(spec: NodeSpec, gpus: Iterable[Gpu]) -> None:
    wanted = spec.engine.compute_capability
    for gpu in gpus:
        found = f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
        if wanted and found != wanted:
            raise InputError(
                f"GPU {gpu.index} ({gpu.name}) has compute capability {found}, the profile is for {wanted}",
                where=f"profile {spec.profile}, key engine.compute_capability",
                remedy="choose the profile of this GPU; `dsv41 config profiles` lists them",
            )


def _claim(name: str, gpus: Iterable[int], taken: dict[int, str], by_index: Mapping[int, Gpu]) -> None:
    for index in gpus:
        if index not in by_index:
            raise InputError(
                f"GPU {index} does not exist here (found {_span(by_index)})",
                where=f"key engines.{name}.gpus",
                remedy="list GPUs that `dsv41 facts` shows",
            )
        if index in taken:
            raise InputError(
                f"GPU {index} is listed twice, for {taken[index]} and for {name}",
                where=f"key engines.{name}.gpus",
                remedy="give every GPU to one engine",
            )
        taken[index] = name


def _choose(name: str, engine: EngineRole, facts: Facts, taken: Mapping[int, str]) -> list[int]:
    free = [gpu for gpu in facts.gpus if gpu.index not in taken]
    by_node: dict[int | None, list[int]] = {}
    for gpu in free:
        by_node.setdefault(gpu.numa_node, []).append(gpu.index)
    occupied = {gpu.numa_node for gpu in facts.gpus if gpu.index in taken}
    for node in sorted(by_node, key=lambda n: (n is None, n in occupied, n)):
        if len(by_node[node]) >= engine.tp:
            return sorted(by_node[node])[: engine.tp]
    if len(free) < engine.tp:
        raise InputError(
            f"needs {engine.tp} GPUs, {len(free)} of {len(facts.gpus)} are free",
            where=f"key engines.{name}.tp",
            remedy="choose a shape that fits this machine, or lower tp",
        )
    if engine.cross_socket:
        return sorted(gpu.index for gpu in free)[: engine.tp]
    counts = ", ".join(f"node {node}: {len(indices)}" for node, indices in sorted(by_node.items(), key=str))
    raise InputError(
        f"no NUMA node has {engine.tp} free GPUs ({counts})",
        where=f"key engines.{name}.gpus",
        remedy=f"lower tp, or set engines.{name}.cross_socket = true to allow it",
    )


def _locate(name: str, engine: EngineRole, gpus: list[Gpu], facts: Facts, taken: Mapping[int, str]) -> Placement:
    nodes = sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None})
    if len(nodes) > 1 and not engine.cross_socket:
        raise InputError(
            f"GPUs {_span(g.index for g in gpus)} sit on NUMA nodes {_span(nodes)}; a TP group over sockets talks through both",
            where=f"key engines.{name}.gpus",
            remedy=f"{_mend(engine, gpus, facts, taken)}, or set engines.{name}.cross_socket = true to allow it",
        )
    node = nodes[0] if len(nodes) == 1 else None
    cpus: tuple[int, ...] = ()
    if node is not None:
        cpus = next((n.cpus for n in facts.numa if n.id == node), ())
    return Placement(gpus=tuple(gpu.index for gpu in gpus), numa_node=node, cpus=cpus)


def _mend(engine: EngineRole, gpus: list[Gpu], facts: Facts, taken: Mapping[int, str]) -> str:
    """Name the exchange that brings the group to the node where most of it already is."""
    here = {gpu.index for gpu in gpus}
    known = {n for n in (gpu.numa_node for gpu in facts.gpus) if n is not None}
    homes = sorted(
        (node for node in known if sum(g.numa_node == node for g in facts.gpus) >= engine.tp),
        key=lambda node: (-sum(gpu.numa_node == node for gpu in gpus), node),
    )
    if not homes:
        return "no NUMA node has enough GPUs: lower tp"
    home = homes[0]
    leaving = [gpu.index for gpu in gpus if gpu.numa_node != home]
    candidates = sorted(
        (gpu.index for gpu in facts.gpus if gpu.numa_node == home and gpu.index not in here),
        key=lambda index: (index in taken, index),
    )
    joining = candidates[: len(leaving)]
    better = sorted((here - set(leaving)) | set(joining))
    owners = sorted({taken[index] for index in joining if index in taken})
    swap = f"exchange {_span(leaving)} for {_span(joining)}"
    if owners:
        swap += f" (now of {', '.join(owners)})"
    return f"{swap}: gpus = {better}"


def _span(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in sorted(values))
