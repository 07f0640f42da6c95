"""Where the memory of the engines really lies, from numa_maps: a policy that was set is not a page that was placed."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.exporter import metrics
from dsv41_serving.run.record import Records
from dsv41_serving.run.session import session_members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.exporter.metrics import Family
    from dsv41_serving.plan.model import Plan

_PAGES = re.compile(r"\bN(\d+)=(\d+)")
_PAGE_SIZE = re.compile(r"\bkernelpagesize_kB=(\d+)")


@dataclass
class Placement:
    """Memory of some processes. `by_node` is bytes; `policies` the memory policies their mappings name."""

    by_node: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    policies: set[str] = field(default_factory=set)

    def add(self, numa_maps: str) -> None:
        """Count the text of one /proc/PID/numa_maps."""
        for line in numa_maps.splitlines():
            words = line.split(maxsplit=2)
            size = _PAGE_SIZE.search(line)
            if len(words) < 2 or size is None:  # noqa: PLR2004 - address and policy; without a size no page is there
                continue
            self.policies.add(words[1])
            for node, pages in _PAGES.findall(line):
                self.by_node[int(node)] += int(pages) * int(size[1]) * 1024


class NumaSource:
    """NUMA placement of every engine of a plan. Walking hundreds of GiB of pages takes seconds: read it in the background."""

    name = "numa"

    def __init__(self, plan: Plan, root: Path = Path("/")) -> None:
        """Look at the recorded processes of `plan`, below `root`."""
        self._plan = plan
        self._records = Records(plan.state_dir)
        self._root = root

    def read(self) -> Iterable[Family]:
        """Return bytes by node, foreign bytes, and whether the policy binds; engines that do not run are left out."""
        resident, foreign, bound = (
            metrics.NUMA_RESIDENT.family(),
            metrics.NUMA_FOREIGN.family(),
            metrics.NUMA_BOUND.family(),
        )
        records = {record.name: record for record in self._records.read_services()}
        for engine in self._plan.engines:
            record = records.get(engine.name)
            if record is None or record.pid is None or not record.alive:
                continue
            placement = self._place(session_members(record.pid))
            for node, count in sorted(placement.by_node.items()):
                resident.add_metric([engine.name, str(node)], count)
            home = engine.placement.numa_node
            if home is not None:
                foreign.add_metric([engine.name], sum(placement.by_node.values()) - placement.by_node.get(home, 0))
                bound.add_metric([engine.name], float(f"bind:{home}" in placement.policies))
        return resident, foreign, bound

    def _place(self, pids: Iterable[int]) -> Placement:
        placement = Placement()
        for pid in pids:
            with suppress(OSError):  # it ended, or the kernel has no NUMA
                placement.add(
                    (self._root / "proc" / str(pid) / "numa_maps").read_text(encoding="utf-8", errors="replace")
                )
        return placement
