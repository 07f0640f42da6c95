"""Whether an engine runs where the plan put it: what the kernel says about its CPUs, its memory policy and its pages.

A directive in a unit is a wish. CPUs are read from `Cpus_allowed_list`; a memory policy shows in `numa_maps` alone, since
`Mems_allowed_list` is about cpusets. SGLang starts processes of its own, so every process of the session is looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.check.result import Finding
from dsv41_serving.facts import format_cpu_list, parse_cpu_list
from dsv41_serving.plan.memory import gib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.plan.model import Service

_PAGES = re.compile(r" N(\d+)=(\d+)")
_PAGE_KIB = re.compile(r" kernelpagesize_kB=(\d+)")
# Pages of files belong to the page cache, and whoever read the file first decides where they lie.
_FILE = re.compile(r" file=(?!/dev/shm/|/memfd:|/dev/zero)")
# Libraries may bind single mappings for good reasons; heap and stack show what the process was started with.
_OWN = re.compile(r" (heap|stack)( |$)")


@dataclass
class Seen:
    """What was found over the processes of one engine."""

    cpus: set[int] = field(default_factory=set)
    policies: set[str] = field(default_factory=set)
    bytes_by_node: dict[int, int] = field(default_factory=dict)

    def add(self, status: str, numa_maps: str) -> None:
        """Count one process: the text of its /proc files `status` and `numa_maps`."""
        allowed = next((line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:")), "")
        self.cpus.update(parse_cpu_list(allowed))
        for line in numa_maps.splitlines():
            if _FILE.search(line):
                continue
            if _OWN.search(line):
                self.policies.add(line.split(" ", 2)[1])
            size = int(match[1]) << 10 if (match := _PAGE_KIB.search(line)) else 4096
            for node, pages in _PAGES.findall(line):
                self.bytes_by_node[int(node)] = self.bytes_by_node.get(int(node), 0) + int(pages) * size


def check_placement(service: Service, pids: Iterable[int], root: Path = Path("/")) -> Finding:
    """Return whether the processes `pids` keep to the NUMA node and the CPUs of `service`. Takes seconds for large engines."""
    seen = Seen()
    for pid in pids:
        directory = root / "proc" / str(pid)
        try:
            status, maps = ((directory / name).read_text(errors="replace") for name in ("status", "numa_maps"))
        except OSError:
            continue  # it ended meanwhile
        seen.add(status, maps)
    return judge_placement(service, seen)


def judge_placement(service: Service, seen: Seen) -> Finding:
    """Compare what was `seen` with the plan. A page on another node is reported and passes: it may be shared, or older."""
    node, cpus = service.placement.numa_node, set(service.placement.cpus)
    foreign = sum(count for where, count in seen.bytes_by_node.items() if where != node)
    local = seen.bytes_by_node.get(node, 0) if node is not None else 0
    problems = []
    if strangers := seen.cpus - cpus if cpus else set():
        problems.append(f"may run on CPUs {format_cpu_list(tuple(sorted(strangers)))} outside node {node}")
    if unbound := sorted(seen.policies - {f"bind:{node}"}):
        problems.append(f"memory policy {', '.join(unbound)} instead of bind:{node}")
    if not seen.policies:
        problems.append("no process could be read")
    return Finding(
        service=service.name,
        check="placement",
        passed=not problems,
        seen="; ".join(problems) or f"bind:{node}, {gib(local)} on it, {gib(foreign)} elsewhere",
        remedy="start it through its unit or through `dsv41`; something else sets CPUs or policy",
    )
