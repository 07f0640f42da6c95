"""All facts of one machine, put together."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.facts import files
from dsv41_serving.facts.kernel import read_kernel_settings, read_limits, read_memory
from dsv41_serving.facts.listener import read_listeners
from dsv41_serving.facts.model import Facts, Gpu, NumaNode
from dsv41_serving.facts.numa import read_cpus, read_numa_nodes
from dsv41_serving.facts.nvml import NvmlGpu, NvmlLibrary, NvmlRecord, NvmlSource
from dsv41_serving.facts.pci import locate_device, normalise_address

if TYPE_CHECKING:
    from collections.abc import Sequence

_THIS_MACHINE = Path("/")


def read_facts(root: Path = _THIS_MACHINE, nvml: NvmlSource | None = None) -> Facts:
    """Return what the machine below `root` is.

    GPUs come from `nvml`; without it, from the driver for this machine and from `nvml.json` for any other root.
    Raises InputError when a file holds something else than its kernel documentation says.
    """
    if nvml is None:
        nvml = NvmlLibrary() if root == _THIS_MACHINE else NvmlRecord(root)
    report = nvml.query()
    nodes = read_numa_nodes(root)
    gpus = tuple(_place_gpu(gpu, nodes, root) for gpu in report.gpus)
    return Facts(
        hostname=files.read_text(root / "proc/sys/kernel/hostname"),
        architecture=_read_architecture(root),
        kernel_release=files.read_text(root / "proc/sys/kernel/osrelease"),
        os_name=_read_os_name(root),
        cpus=read_cpus(root),
        numa=nodes,
        gpus=gpus,
        gpu_problem=report.problem,
        driver_version=report.driver_version,
        cuda_driver_version=report.cuda_driver_version,
        memory=read_memory(root),
        limits=read_limits(root),
        kernel=read_kernel_settings(root, [gpu.pci_address for gpu in gpus]),
        listeners=read_listeners(root),
    )


def _place_gpu(gpu: NvmlGpu, nodes: Sequence[NumaNode], root: Path) -> Gpu:
    try:
        address = normalise_address(gpu.pci_bus_id)
    except ValueError as error:
        raise InputError(f"GPU {gpu.index}: {error}", where="NVML", remedy="compare with `nvidia-smi -L`") from None
    device = locate_device(root, address)
    node = files.read_int(device / "numa_node")
    if node is None or node < 0:  # the firmware names none; on a machine with one node there is no other
        node = nodes[0].id if len(nodes) == 1 else None
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        pci_address=address,
        numa_node=node,
        cpus=files.read_cpu_list(device / "local_cpulist") or (),
        memory_total_bytes=gpu.memory_total_bytes,
        memory_used_bytes=gpu.memory_used_bytes,
        compute_capability=gpu.compute_capability,
        persistence=gpu.persistence,
        processes=gpu.processes,
        links=gpu.nvlink_peers,
        health=gpu.health,
    )


def _read_architecture(root: Path) -> str | None:
    """Return the machine's architecture as `uname -m`: procfs tells it since Linux 6.1, the system call always."""
    recorded = files.read_text(root / "proc/sys/kernel/arch")
    return os.uname().machine if recorded is None and root == _THIS_MACHINE else recorded


def _read_os_name(root: Path) -> str | None:
    """Return the distribution's own name for itself (os-release(5))."""
    for path in ("etc/os-release", "usr/lib/os-release"):
        found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', files.read_text(root / path) or "", re.MULTILINE)
        if found:
            return found[1]
    return None
