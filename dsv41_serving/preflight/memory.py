"""Is there host memory, shared memory, and the right to lock it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.plan.memory import gib
from dsv41_serving.preflight.check import Check, failed, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_MAPS = 262_144
_OPEN_FILES = 65_536
_HUGE = {"always", "within_size", "advise", "force"}
_NEVER_OVERCOMMIT = 2


def judge_host(scene: Scene) -> Outcome | None:
    """Return whether host memory suffices for all engines."""
    if scene.traces.running:
        return None
    for line in scene.plan.memory:
        if line.what == "host memory":
            if line.available is None:
                return warned("the machine does not say how much is free", "free -g")
            if line.needed > line.available:
                return failed(
                    f"{gib(line.needed)} needed, {gib(line.available)} available",
                    "ps --sort=-rss -eo pid,rss,args | head; end what is not needed, or choose a smaller shape",
                )
            return passed(f"{gib(line.needed)} needed, {gib(line.available)} available")
    return None


def judge_cgroup(scene: Scene) -> Outcome | None:
    """Return whether no control group caps memory below what the plan needs: a cap kills in the middle of pinning."""
    limit = scene.host.memory_limit_bytes
    needed = next((line.needed for line in scene.plan.memory if line.what == "host memory"), 0)
    if limit is not None and limit < needed:
        return failed(
            f"memory.max is {gib(limit)}, the plan needs {gib(needed)}",
            "systemctl show -p MemoryMax,ControlGroup UNIT; raise MemoryMax of the slice or of the container",
        )
    return passed("no cap" if limit is None else f"capped at {gib(limit)}, enough")


def judge_shm(scene: Scene) -> Outcome | None:
    """Return whether /dev/shm has room for the buffers of NCCL and of the engines."""
    free, needed = scene.facts.memory.shm_free_bytes, scene.spec.memory.shm_bytes
    if free is None:
        return failed("there is no shared memory", "sudo mount -t tmpfs tmpfs /dev/shm")
    if scene.traces.running:
        return None  # what serves has its part of it
    if free < needed:
        size = max(1, -(-needed // (1 << 30)) * 2)
        return failed(f"{gib(free)} free, {gib(needed)} needed", f"sudo mount -o remount,size={size}G /dev/shm")
    return passed(f"{gib(free)} free, {gib(needed)} needed")


def judge_memlock(scene: Scene) -> Outcome | None:
    """Return whether memory may be locked: with too little a transfer says so, or hangs."""
    init, own = scene.host.init_limits, scene.facts.limits
    if init is not None and init.memlock_hard is not None and init.memlock_hard < (1 << 30):
        # systemd cannot give a service more than it has, unless it may raise limits; `systemctl show` says infinity all the same.
        return warned(
            f"process 1 itself is limited to {init.memlock_hard} bytes: LimitMEMLOCK=infinity may be cut in silence",
            "after the start: grep 'locked memory' /proc/$(systemctl show -P MainPID dsv41-prefill)/limits",
        )
    if (
        own is not None
        and own.memlock_soft is not None
        and own.memlock_soft < scene.spec.memory.engram_bytes + (1 << 30)
    ):
        return warned(
            f"this shell may lock {own.memlock_soft >> 20} MiB; units ask for LimitMEMLOCK=infinity themselves",
            "ulimit -l unlimited before `dsv41 up`, or memlock in /etc/security/limits.d/",
        )
    return passed("unlimited" if own is None or own.memlock_soft is None else gib(own.memlock_soft))


def judge_open_files(scene: Scene) -> Outcome | None:
    """Return whether enough descriptors can be open: each connection, buffer and shard takes one."""
    own = scene.facts.limits
    hard = own.nofile_hard if own else None
    if own is None:
        return warned("the limits of this process cannot be read", "ulimit -Hn")
    if hard is not None and hard < _OPEN_FILES and scene.on_gpus:
        return warned(f"at most {hard}", "raise nofile in /etc/security/limits.d/; units set LimitNOFILE themselves")
    return passed("unlimited" if hard is None else f"up to {hard}")


def judge_shared_huge_pages(scene: Scene) -> Outcome | None:
    """Return whether shared memory gets huge pages where Engram tables lie in it."""
    if scene.spec.memory.engram not in {"host_shared", "host_per_rank"}:
        return None
    setting = scene.facts.kernel.shmem_enabled
    if setting not in _HUGE:
        return failed(
            f"shmem_enabled is {setting}: look-ups in the Engram tables are about ten times slower",
            "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    return passed(f"shmem_enabled is {setting}")


def judge_huge_pages(scene: Scene) -> Outcome | None:
    """Return whether private memory gets huge pages."""
    setting = scene.facts.kernel.thp_enabled
    if setting == "never":
        return warned(
            "transparent huge pages are off", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        )
    return passed(f"enabled is {setting}" if setting else "this kernel has none")


def judge_engram(scene: Scene) -> Outcome | None:
    """Return whether host memory holds every copy of the Engram tables, next to everything else."""
    memory = scene.spec.memory
    if memory.engram not in {"host_shared", "host_per_rank"} or scene.traces.running:
        return None
    engines = scene.spec.active_engines()
    copies = sum(engine.tp if memory.engram == "host_per_rank" else 1 for engine in engines.values())
    available = scene.facts.memory.available_bytes
    needed = copies * memory.engram_bytes
    if available is not None and needed > available:
        return failed(
            f"{copies} copies of {gib(memory.engram_bytes)} are {gib(needed)}, {gib(available)} available",
            "set memory.engram = 'host_shared', or a shape with one engine",
        )
    return passed(f"{copies} copies, {gib(needed)}")


def judge_swap(scene: Scene) -> Outcome | None:
    """Return whether nothing is swapped out: it comes back in the middle of a request."""
    memory = scene.facts.memory
    used = (memory.swap_total_bytes or 0) - (memory.swap_free_bytes or 0)
    if used > (memory.swap_total_bytes or 0) // 10 and used > (1 << 30):
        return warned(f"{gib(used)} swapped out", "sudo swapoff -a; sudo swapon -a when memory is free again")
    return passed("nothing of weight is swapped out")


def judge_overcommit(scene: Scene) -> Outcome | None:
    """Return whether address space may exceed memory: CUDA reserves the memory of all GPUs in every process."""
    if scene.facts.kernel.overcommit == _NEVER_OVERCOMMIT:
        return failed(
            "vm.overcommit_memory = 2 refuses the address space CUDA reserves", "sudo sysctl -w vm.overcommit_memory=0"
        )
    return passed(f"vm.overcommit_memory = {scene.facts.kernel.overcommit}")


def judge_maps(scene: Scene) -> Outcome | None:
    """Return whether a process may have enough mappings."""
    found = scene.facts.kernel.max_map_count
    if found is not None and found < _MAPS:
        return warned(f"vm.max_map_count = {found}", f"sudo sysctl -w vm.max_map_count={_MAPS * 4}")
    return passed(f"vm.max_map_count = {found}")


CHECKS = (
    Check(
        "host",
        "Is there host memory for all engines?",
        "vllm#57910: hundreds of GB are pinned",
        judge_host,
        needs_plan=True,
    ),
    Check(
        "cgroup",
        "Does no control group cap it?",
        "Dynamo: a hard limit turns a pinned spike into an OOM kill",
        judge_cgroup,
        needs_plan=True,
    ),
    Check(
        "engram",
        "Does host memory hold every copy of the Engram tables?",
        "SGLang 0.5.23: about 189 GiB for each server",
        judge_engram,
        needs_gpus=True,
    ),
    Check("shm", "Has /dev/shm room?", "SGLang documentation for V4.1: 32 GB of shared memory", judge_shm),
    Check("memlock", "May memory be locked?", "local-ai-registry#55, vllm#57910", judge_memlock, needs_gpus=True),
    Check("open-files", "May enough files be open?", "UCX and 48 weight files", judge_open_files),
    Check(
        "shared-huge-pages",
        "Do Engram tables get huge pages?",
        "SGLang 0.5.23: 'no huge pages', ten times slower",
        judge_shared_huge_pages,
        needs_gpus=True,
    ),
    Check(
        "huge-pages",
        "Does private memory get huge pages?",
        "SGLang 0.5.23, private Engram tables",
        judge_huge_pages,
        needs_gpus=True,
    ),
    Check("swap", "Is nothing swapped out?", "spark-vllm-docker#257: host thrashing", judge_swap),
    Check(
        "overcommit",
        "May address space exceed memory?",
        "CUDA programming guide, unified addressing",
        judge_overcommit,
        needs_gpus=True,
    ),
    Check(
        "maps",
        "May a process have enough mappings?",
        "kernel documentation, max_map_count",
        judge_maps,
        needs_gpus=True,
    ),
)
