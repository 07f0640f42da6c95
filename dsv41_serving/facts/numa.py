"""CPUs and NUMA nodes, from sysfs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsv41_serving.facts import files
from dsv41_serving.facts.model import HugePages, NumaNode

if TYPE_CHECKING:
    from pathlib import Path

LOCAL_DISTANCE = 10


def read_cpus(root: Path) -> tuple[int, ...]:
    """Return the online CPUs, ascending; empty when sysfs does not say."""
    return files.read_cpu_list(root / "sys/devices/system/cpu/online") or ()


def read_numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes by id. A kernel without NUMA has one node 0.

    The only node has all CPUs and all memory of the machine; so it is described by the machine's own files. A guest
    that gets its memory piece by piece shows in the files of the node what it started with.
    Raises InputError when a file is malformed.
    """
    directories = {
        int(found[1]): directory
        for directory in (root / "sys/devices/system/node").glob("node*")
        if (found := re.fullmatch(r"node(\d+)", directory.name))
    }
    if len(directories) < 2:  # noqa: PLR2004 one, or none
        only = min(directories, default=0)
        memory = files.read_kilobytes(root / "proc/meminfo") or {}
        return (
            NumaNode(
                id=only,
                cpus=read_cpus(root),
                memory_total_bytes=memory.get("MemTotal"),
                memory_free_bytes=memory.get("MemFree"),
                huge_pages=_read_huge_pages(root / "sys/kernel/mm/hugepages"),
                distances={only: LOCAL_DISTANCE},
            ),
        )
    ids = sorted(directories)
    return tuple(_read_node(node, directories[node], ids) for node in ids)


def _read_node(node: int, directory: Path, ids: list[int]) -> NumaNode:
    memory = files.read_kilobytes(directory / "meminfo") or {}
    return NumaNode(
        id=node,
        cpus=files.read_cpu_list(directory / "cpulist") or (),
        memory_total_bytes=memory.get("MemTotal"),
        memory_free_bytes=memory.get("MemFree"),
        huge_pages=_read_huge_pages(directory / "hugepages"),
        distances=_read_distances(directory / "distance", ids),
    )


def _read_huge_pages(directory: Path) -> dict[int, HugePages]:
    pools = {}
    for pool in directory.glob("hugepages-*kB"):
        total = files.read_int(pool / "nr_hugepages")
        free = files.read_int(pool / "free_hugepages")
        if total is not None and free is not None:
            pools[int(pool.name.removeprefix("hugepages-").removesuffix("kB"))] = HugePages(total=total, free=free)
    return dict(sorted(pools.items()))


def _read_distances(path: Path, ids: list[int]) -> dict[int, int]:
    """Return distance by node id: the file holds one number per online node, in the order of their ids."""
    text = files.read_text(path)
    if text is None:
        return {}
    words = text.split()
    if len(words) != len(ids) or not all(word.isdecimal() for word in words):
        raise files.malformed(path, f"expected {len(ids)} distances, found {text[:40]!r}")
    return dict(zip(ids, map(int, words), strict=True))
