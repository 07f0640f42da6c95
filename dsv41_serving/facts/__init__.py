"""What the machine is, read from procfs, sysfs and NVML.

Every file lies below a root directory; a recorded machine is such a directory, with `nvml.json` and `shm.json` for
what the kernel keeps in no file.
"""

from dsv41_serving.facts.files import format_cpu_list, parse_cpu_list
from dsv41_serving.facts.kernel import count_oom_kills, read_limits
from dsv41_serving.facts.listener import find_listener, read_listeners
from dsv41_serving.facts.machine import read_facts
from dsv41_serving.facts.model import (
    Facts,
    Gpu,
    HugePages,
    Iommu,
    KernelSettings,
    Limits,
    Listener,
    Memory,
    NumaNode,
    Process,
)
from dsv41_serving.facts.nvml import NvmlGpu, NvmlLibrary, NvmlRecord, NvmlReport, NvmlSource
from dsv41_serving.facts.process import descends_from, read_process
from dsv41_serving.facts.table import describe

__all__ = [
    "Facts",
    "Gpu",
    "HugePages",
    "Iommu",
    "KernelSettings",
    "Limits",
    "Listener",
    "Memory",
    "NumaNode",
    "NvmlGpu",
    "NvmlLibrary",
    "NvmlRecord",
    "NvmlReport",
    "NvmlSource",
    "Process",
    "count_oom_kills",
    "descends_from",
    "describe",
    "find_listener",
    "format_cpu_list",
    "parse_cpu_list",
    "read_facts",
    "read_limits",
    "read_listeners",
    "read_process",
]
