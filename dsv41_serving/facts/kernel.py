"""Memory, resource limits and kernel settings, from procfs and sysfs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from dsv41_serving.facts import files
from dsv41_serving.facts.model import KernelSettings, Limits, Memory
from dsv41_serving.facts.pci import read_acs_bridges, read_iommu

if TYPE_CHECKING:
    from collections.abc import Sequence

TRANSPARENT_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage"
SHM_RECORD = "shm.json"


class ShmSize(BaseModel):
    """Size of the file system at /dev/shm. A recorded machine keeps it in `shm.json`: no file of /proc tells it."""

    total_bytes: int
    free_bytes: int


def read_memory(root: Path) -> Memory:
    """Return the memory of the machine in bytes. Raises InputError when /proc/meminfo is malformed."""
    sizes = files.read_kilobytes(root / "proc/meminfo") or {}
    shm = _read_shm_size(root)
    return Memory(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=sizes.get("MemAvailable"),
        swap_total_bytes=sizes.get("SwapTotal"),
        swap_free_bytes=sizes.get("SwapFree"),
        shm_total_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
    )


def _read_shm_size(root: Path) -> ShmSize | None:
    record = root / SHM_RECORD
    if (content := files.read_text(record)) is not None:
        try:
            return ShmSize.model_validate_json(content)
        except ValidationError as error:
            raise files.malformed(record, error.errors()[0]["msg"]) from None
    try:
        size = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return ShmSize(total_bytes=size.f_blocks * size.f_frsize, free_bytes=size.f_bavail * size.f_frsize)


def count_oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has ended for lack of memory since boot, in any control group; 0 where it does not say."""
    found = re.search(r"^oom_kill (\d+)$", files.read_text(root / "proc/vmstat") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def read_limits(root: Path = Path("/"), pid: int | None = None) -> Limits | None:
    """Return the resource limits of process `pid`, or of the calling process; None when there is no such process.

    Raises InputError when the file lacks one: what cannot be read must not pass as unlimited.
    """
    path = root / "proc" / ("self" if pid is None else str(pid)) / "limits"
    text = files.read_text(path)
    if text is None:
        return None
    memlock_soft, memlock_hard = _find_limit(path, text, "Max locked memory")
    nofile_soft, nofile_hard = _find_limit(path, text, "Max open files")
    return Limits(
        memlock_soft=memlock_soft, memlock_hard=memlock_hard, nofile_soft=nofile_soft, nofile_hard=nofile_hard
    )


def _find_limit(path: Path, text: str, name: str) -> tuple[int | None, int | None]:
    found = re.search(rf"^{name}\s+(\d+|unlimited)\s+(\d+|unlimited)\s", text, re.MULTILINE)
    if found is None:
        raise files.malformed(path, f"no line {name!r}")
    soft, hard = (None if value == "unlimited" else int(value) for value in found.groups())
    return soft, hard


def read_kernel_settings(root: Path, gpu_addresses: Sequence[str]) -> KernelSettings:
    """Return the kernel settings; `gpu_addresses` are the PCI addresses whose IOMMU groups and bridges count.

    Raises InputError when one of the files is malformed.
    """
    return KernelSettings(
        ptrace_scope=files.read_int(root / "proc/sys/kernel/yama/ptrace_scope"),
        shmem_enabled=files.read_choice(root / TRANSPARENT_HUGE_PAGES / "shmem_enabled"),
        thp_enabled=files.read_choice(root / TRANSPARENT_HUGE_PAGES / "enabled"),
        numa_balancing=files.read_int(root / "proc/sys/kernel/numa_balancing"),
        max_map_count=files.read_int(root / "proc/sys/vm/max_map_count"),
        overcommit=files.read_int(root / "proc/sys/vm/overcommit_memory"),
        iommu=read_iommu(root, gpu_addresses),
        acs_bridges=read_acs_bridges(root, gpu_addresses),
    )
