"""What a machine is, as frozen values: the shape of `dsv41 facts --json` and the machine half of what `plan` reads.

None always means "this machine does not say" (the file is absent or may not be read), never "zero".
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class HugePages(_Fact):
    """The pool of one huge page size on one NUMA node, counted in pages."""

    total: int
    free: int


class NumaNode(_Fact):
    """One NUMA node. A node that is memory alone (CXL, the HBM of a GB300) has no CPUs."""

    id: int
    cpus: tuple[int, ...]
    """Online CPUs of the node, ascending."""
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    """Free in the kernel's sense: page cache counts as used."""
    huge_pages: dict[int, HugePages]
    """Page size in KiB to its pool."""
    distances: dict[int, int]
    """Node id to the firmware's relative distance (10 is local)."""


class GpuHealth(_Fact):
    """What NVML says of the condition of a GPU. None where this GPU, driver or user gets no answer."""

    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool | None = None
    """A bad row is replaced at the next reset of the GPU."""
    remap_failed: bool | None = None
    """A bad row could not be replaced."""
    power_limit_mw: int | None = None
    power_default_mw: int | None = None
    slowdowns: tuple[str, ...] | None = None
    """Why the clocks are held down now, of the reasons that are a fault of power or cooling."""
    pcie_width: int | None = None
    """Lanes of the link as it is now."""
    pcie_width_max: int | None = None
    """Lanes that the GPU and the slot could use."""
    mig: bool | None = None
    """Whether the GPU is cut into instances."""
    compute_mode: Literal["default", "prohibited", "exclusive"] | None = None
    p2p_peers: tuple[int, ...] | None = None
    """Indices of the GPUs whose memory it may read directly, over NVLink or PCIe."""


class Gpu(_Fact):
    """One GPU: what NVML says of it, and where sysfs places its PCI address."""

    index: int
    """NVML's index, which follows the PCI address. CUDA uses the same order under CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    uuid: str
    name: str
    pci_address: str
    """In sysfs notation, for example 0000:1b:00.0."""
    numa_node: int | None
    """None when the firmware names none and the machine has several nodes."""
    cpus: tuple[int, ...]
    """CPUs local to the GPU; empty when sysfs does not say."""
    memory_total_bytes: int
    memory_used_bytes: int
    """Used by processes and their contexts; what the driver keeps for itself does not count."""
    compute_capability: tuple[int, int]
    persistence: bool | None
    processes: tuple[int, ...] | None
    """Pids with a context on the GPU, as NVML sees them; None when it refuses to tell."""
    links: tuple[int, ...] | None
    """Indices of the GPUs reached over NVLink, through a switch or directly; None when NVML refuses to tell."""
    health: GpuHealth = GpuHealth()


class Memory(_Fact):
    """Host memory. `shm` is the file system at /dev/shm, which bounds NCCL's and POSIX shared memory."""

    total_bytes: int | None
    available_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    shm_total_bytes: int | None
    shm_free_bytes: int | None


class Limits(_Fact):
    """Resource limits of one process. None means unlimited."""

    memlock_soft: int | None
    """Bytes of memory that may be locked."""
    memlock_hard: int | None
    nofile_soft: int | None
    """Open files."""
    nofile_hard: int | None


class Iommu(_Fact):
    """Whether DMA of the GPUs is translated: a hint, since a hypervisor can hide its own IOMMU from a guest."""

    mode: Literal["off", "passthrough", "translated", "unknown"]
    reason: str
    """What the mode was concluded from."""


class KernelSettings(_Fact):
    """Kernel settings that decide about transport and table look-ups."""

    ptrace_scope: int | None
    """Yama: 0 lets processes of one user copy from each other; absent without Yama, which has the same effect."""
    shmem_enabled: str | None
    """Transparent huge pages for shared memory, the shared Engram tables among it."""
    thp_enabled: str | None
    """Transparent huge pages for private memory."""
    numa_balancing: int | None
    max_map_count: int | None
    overcommit: int | None
    """vm.overcommit_memory: 0 heuristic, 1 always, 2 never beyond the commit limit."""
    iommu: Iommu
    acs_bridges: tuple[str, ...] | None
    """PCI bridges above a GPU whose ACS sends peer traffic up to the root; None when this user may not see it."""


class Process(_Fact):
    """One process, read as of one moment. `pid` and `start_ticks` together name it for the uptime of the machine."""

    pid: int
    parent_pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process (proc_pid_stat(5), field 22)."""
    start_time: float | None
    """The same in Unix seconds, for people: it moves when the wall clock is set, `start_ticks` does not."""
    state: str
    """R, S, D, Z ... as in proc_pid_stat(5)."""
    command: tuple[str, ...]
    """Empty for kernel threads and zombies."""
    cgroup: str | None
    """Path in the unified hierarchy, or in systemd's own where that is absent."""
    uid: int | None
    """Effective user."""


class Listener(_Fact):
    """One listening TCP socket and, as far as this user may see, the process that owns it."""

    port: int
    address: str
    """Without brackets; an IPv4-mapped IPv6 address is given as the IPv4 address it serves."""
    uid: int
    """User that opened the socket; known even when the process is not."""
    pid: int | None
    """The holder that started first, init aside; None when the descriptors of the owner may not be read."""
    holders: tuple[int, ...]
    """Every process found to listen here: more than one after a fork, with SO_REUSEPORT or under socket activation."""
    start_ticks: int | None
    start_time: float | None
    cgroup: str | None
    command: tuple[str, ...] | None


class Facts(_Fact):
    """Everything `plan` may know of a machine."""

    hostname: str | None
    architecture: str | None
    kernel_release: str | None
    os_name: str | None
    cpus: tuple[int, ...]
    """Online CPUs, ascending."""
    numa: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None
    """Why NVML gave nothing, or which GPUs it could not read."""
    driver_version: str | None
    cuda_driver_version: str | None
    """The newest CUDA the driver supports, for example 13.0."""
    memory: Memory
    limits: Limits | None
    """Of the process that read the facts; a service may have others (`read_limits` takes a pid)."""
    kernel: KernelSettings
    listeners: tuple[Listener, ...]
