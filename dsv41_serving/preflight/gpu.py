"""Are the GPUs there, free, of one kind and in good condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.capacity.report import list_shortages
from dsv41_serving.plan.memory import gib
from dsv41_serving.preflight.check import Check, failed, join_gpus, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.facts.model import Gpu
    from dsv41_serving.preflight.check import Outcome, Scene

_USED_LIMIT_BYTES = 1 << 30
# Xids after which the driver or the hardware is at fault, not the program (NVIDIA, "GPU Debug Guidelines": XID messages).
_HARDWARE_XIDS = {48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 154}


def judge_driver(scene: Scene) -> Outcome | None:
    """Return whether NVML read every GPU."""
    if scene.facts.gpu_problem:
        return failed(
            scene.facts.gpu_problem, "nvidia-smi; dmesg | grep -i nvidia; reinstall the driver or reset the GPU"
        )
    return passed(f"driver {scene.facts.driver_version}, CUDA up to {scene.facts.cuda_driver_version}")


def judge_count(scene: Scene) -> Outcome | None:
    """Return whether the machine has as many GPUs as the shape uses."""
    wanted = sum(engine.tp for engine in scene.spec.active_engines().values())
    found = scene.facts.gpus
    if len(found) < wanted:
        return failed(
            f"{len(found)} GPUs answer, shape {scene.spec.shape} uses {wanted}",
            "lspci -d 10de: ; a GPU that is listed there and not by `nvidia-smi -L` has fallen off: power-cycle the node",
        )
    return passed(f"{len(found)} GPUs, {wanted} used: {', '.join(gpu.uuid[:12] for gpu in found)}")


def judge_architecture(scene: Scene) -> Outcome | None:
    """Return whether the GPUs are what the values of the profile are for."""
    wanted = scene.spec.engine.compute_capability
    others = [gpu for gpu in scene.facts.gpus if _capability(gpu) != wanted]
    if not wanted or not scene.facts.gpus:
        return None
    if others:
        return failed(
            f"GPU {join_gpus(others)}: {others[0].name} has compute capability {_capability(others[0])}, "
            f"profile {scene.spec.profile} is for {wanted}",
            "dsv41 config profiles",
        )
    return passed(f"{scene.facts.gpus[0].name}, compute capability {wanted}")


def judge_uniform(scene: Scene) -> Outcome | None:
    """Return whether all GPUs of the plan are of one kind: the slowest and smallest decides for its group."""
    kinds = sorted({(gpu.name, gpu.memory_total_bytes) for gpu in scene.gpus})
    if not kinds:
        return None
    if len(kinds) > 1:
        named = ", ".join(f"{name} {gib(size)}" for name, size in kinds)
        return warned(
            f"GPUs of {len(kinds)} kinds: {named}", "dsv41 facts; put equal GPUs into one group: engines.NAME.gpus"
        )
    return passed(f"{len(scene.gpus)} x {kinds[0][0]}, {gib(kinds[0][1])}")


def judge_memory(scene: Scene) -> Outcome | None:
    """Return whether the weights fit into the share of memory that the engine may use."""
    lines = [line for line in scene.plan.memory if line.what.startswith("each GPU of ")]
    short = []
    for line in lines:
        name = line.what.removeprefix("each GPU of ")
        share = scene.spec.engines[name].memory_fraction or 0.9
        if line.available is not None and line.needed > line.available * share:
            short.append(f"{name}: {gib(line.needed)} of weights, {share:.0%} of {gib(line.available)} allowed")
    if short:
        return failed(
            "; ".join(short), "dsv41 capacity shows what fits: choose another shape, or Engram tables on the host"
        )
    return passed(
        "; ".join(f"{line.what.removeprefix('each GPU of ')}: {gib(line.needed)} of weights" for line in lines)
    )


def judge_capacity(scene: Scene) -> Outcome | None:
    """Return whether weights, one request of the longest context, graphs and temporaries fit on each GPU."""
    if scene.capacity is None:
        return None
    if lines := list_shortages(scene.capacity):
        return failed("; ".join(lines), "dsv41 capacity")
    held = ", ".join(f"{each.settings.name} {each.tokens:,} tokens" for each in scene.capacity.engines)
    return passed(f"KV for {held}")


def judge_idle(scene: Scene) -> Outcome | None:
    """Return whether no foreign process has a context on the GPUs of the plan."""
    held = {gpu.index: [pid for pid in gpu.processes or () if pid not in scene.traces.own_pids] for gpu in scene.gpus}
    held = {index: pids for index, pids in held.items() if pids}
    if held:
        pids = sorted({pid for group in held.values() for pid in group})
        named = ", ".join(f"GPU {index}: pid {', '.join(map(str, group))}" for index, group in held.items())
        return failed(
            named, f"ps -o pid,user,args -p {','.join(map(str, pids))}; stop them (systemctl stop UNIT, or kill PID)"
        )
    if any(gpu.processes is None for gpu in scene.gpus):
        return warned("the driver does not list processes for this user", "sudo dsv41 preflight")
    return passed("no other process")


def judge_used(scene: Scene) -> Outcome | None:
    """Return whether GPU memory is free: workers of a killed server keep it though its port is free."""
    if scene.traces.running:
        return None
    used = [gpu for gpu in scene.gpus if gpu.memory_used_bytes > _USED_LIMIT_BYTES]
    if used:
        named = ", ".join(f"GPU {gpu.index} {gib(gpu.memory_used_bytes)}" for gpu in used)
        return failed(
            f"in use before the start: {named}", "sudo fuser -v /dev/nvidia*; dsv41 preflight --clean ends what is ours"
        )
    return passed("below 1 GiB on each GPU")


def judge_persistence(scene: Scene) -> Outcome | None:
    """Return whether the driver stays loaded while no program uses a GPU."""
    off = [gpu for gpu in scene.gpus if gpu.persistence is False]
    if off:
        return warned(
            f"off on GPU {join_gpus(off)}: every start initialises them anew",
            "sudo systemctl enable --now nvidia-persistenced",
        )
    return passed("on")


def judge_memory_errors(scene: Scene) -> Outcome | None:
    """Return whether the memory of the GPUs is sound."""
    bad = [gpu for gpu in scene.gpus if gpu.health.remap_failed or gpu.health.ecc_uncorrected]
    waiting = [gpu for gpu in scene.gpus if gpu.health.remap_pending]
    if bad:
        return failed(
            ", ".join(f"GPU {gpu.index}: {gpu.health.ecc_uncorrected or 0} uncorrected errors" for gpu in bad),
            f"nvidia-smi -i {bad[0].index} -q -d ECC,ROW_REMAPPER; reset it while idle, replace it when they come back",
        )
    if waiting:
        return warned(
            f"GPU {join_gpus(waiting)}: a row waits to be replaced",
            f"sudo nvidia-smi -i {waiting[0].index} --gpu-reset",
        )
    return passed("no uncorrected error, no row waiting to be replaced")


def judge_faults(scene: Scene) -> Outcome | None:
    """Return whether the kernel log is free of GPU faults."""
    faults = scene.host.gpu_faults
    if faults is None:
        return warned("this user may not read the kernel log", "sudo dmesg | grep Xid")
    if not faults:
        return passed("no Xid since boot")
    codes = ", ".join(f"Xid {fault.code} on {fault.pci_address}" for fault in faults[-3:])
    if any(fault.code in _HARDWARE_XIDS for fault in faults):
        return failed(
            f"{len(faults)} in the kernel log, last {codes}", "sudo dmesg | grep Xid; drain the node and reset the GPU"
        )
    return warned(f"{len(faults)} in the kernel log, last {codes}", "sudo dmesg | grep Xid")


def judge_power(scene: Scene) -> Outcome | None:
    """Return whether the power limit is the board's own."""
    low = [
        gpu
        for gpu in scene.gpus
        if gpu.health.power_limit_mw
        and gpu.health.power_default_mw
        and gpu.health.power_limit_mw < gpu.health.power_default_mw
    ]
    if low:
        first = low[0].health
        watts = (first.power_default_mw or 0) // 1000
        return warned(
            f"GPU {join_gpus(low)} capped at {(first.power_limit_mw or 0) // 1000} of {watts} W",
            f"sudo nvidia-smi -pl {watts}",
        )
    return passed("the board's own limit")


def judge_slowdown(scene: Scene) -> Outcome | None:
    """Return whether power and cooling let the clocks rise."""
    slow = [gpu for gpu in scene.gpus if gpu.health.slowdowns]
    if slow:
        named = ", ".join(f"GPU {gpu.index}: {', '.join(gpu.health.slowdowns or ())}" for gpu in slow)
        return failed(named, f"nvidia-smi -i {slow[0].index} -q -d PERFORMANCE,TEMPERATURE; mend cooling or power")
    return passed("clocks are not held down")


def judge_pcie(scene: Scene) -> Outcome | None:
    """Return whether every GPU has all its PCIe lanes."""
    narrow = [
        gpu for gpu in scene.gpus if gpu.health.pcie_width and gpu.health.pcie_width < (gpu.health.pcie_width_max or 0)
    ]
    if narrow:
        named = ", ".join(
            f"GPU {gpu.index}: x{gpu.health.pcie_width} of x{gpu.health.pcie_width_max}" for gpu in narrow
        )
        return warned(named, f"sudo lspci -vv -s {narrow[0].pci_address} | grep LnkSta; reseat the board or its riser")
    return passed("every link has its full width")


def judge_instances(scene: Scene) -> Outcome | None:
    """Return whether the GPUs are whole."""
    cut = [gpu for gpu in scene.gpus if gpu.health.mig]
    if cut:
        return failed(
            f"GPU {join_gpus(cut)} is cut into MIG instances",
            f"sudo nvidia-smi -i {join_gpus(cut).replace(' ', '')} -mig 0",
        )
    return passed("no MIG instances")


def judge_compute_mode(scene: Scene) -> Outcome | None:
    """Return whether processes may open the GPUs."""
    closed = [gpu for gpu in scene.gpus if gpu.health.compute_mode not in {None, "default"}]
    if any(gpu.health.compute_mode == "prohibited" for gpu in closed):
        return failed(f"compute is prohibited on GPU {join_gpus(closed)}", "sudo nvidia-smi -c DEFAULT")
    if closed:
        return warned(
            f"GPU {join_gpus(closed)} takes one process only: probes beside an engine fail",
            "sudo nvidia-smi -c DEFAULT",
        )
    return passed("default")


def judge_modules(scene: Scene) -> Outcome | None:
    """Return whether the driver's module for CUDA is loaded."""
    if "nvidia_uvm" in scene.host.modules:
        return passed("nvidia_uvm is loaded")
    return failed(
        "nvidia_uvm is not loaded: CUDA cannot start under a service that may not load it", "sudo modprobe nvidia-uvm"
    )


def _capability(gpu: Gpu) -> str:
    return "{}.{}".format(*gpu.compute_capability)


CHECKS = (
    Check(
        "driver",
        "Does the driver answer for every GPU?",
        "a host that came up with 7 of 8 GPUs (hermes-agent docs)",
        judge_driver,
        needs_gpus=True,
    ),
    Check(
        "count",
        "Are there as many GPUs as the shape uses?",
        "a host that came up with 7 of 8 GPUs (hermes-agent docs)",
        judge_count,
        needs_gpus=True,
    ),
    Check(
        "architecture",
        "Are the GPUs those the profile is for?",
        "vllm#56700: kernels are missing per architecture",
        judge_architecture,
        each_gpu=True,
    ),
    Check(
        "uniform", "Are the GPUs of one kind?", "SGLang gives every rank an equal share", judge_uniform, each_gpu=True
    ),
    Check(
        "memory",
        "Do the weights fit into the share the engine may use?",
        "Dynamo H200 recipe: 119.8 GB per GPU at TP4",
        judge_memory,
        each_gpu=True,
        needs_plan=True,
    ),
    Check(
        "capacity",
        "Do pools, graphs and temporaries fit as well?",
        "vllm#40899, sglang#35201: scratch that is in nobody's budget",
        judge_capacity,
        each_gpu=True,
    ),
    Check(
        "idle",
        "Are the GPUs free of other processes?",
        "vllm#55510, sglang#23627: workers survive their server",
        judge_idle,
        each_gpu=True,
    ),
    Check(
        "used",
        "Is their memory free?",
        "vllm#43060: the port is free and the next start is out of memory",
        judge_used,
        each_gpu=True,
    ),
    Check(
        "persistence",
        "Does the driver stay loaded?",
        "NVIDIA driver persistence documentation",
        judge_persistence,
        each_gpu=True,
    ),
    Check(
        "memory-errors",
        "Is GPU memory sound?",
        "NVIDIA GPU memory error management",
        judge_memory_errors,
        each_gpu=True,
    ),
    Check(
        "faults",
        "Is the kernel log free of Xids?",
        "open-gpu-kernel-modules#1159, #1111: Xid 8, GSP halt, GPU lost",
        judge_faults,
        each_gpu=True,
    ),
    Check(
        "power",
        "Is the power limit the board's own?",
        "dsv41-deploy-public: limits drifted",
        judge_power,
        each_gpu=True,
    ),
    Check("slowdown", "Are the clocks free?", "dsv41-deploy-public: clocks drifted", judge_slowdown, each_gpu=True),
    Check(
        "pcie", "Does every GPU have all its lanes?", "rtx6kpro wiki: risers and retimers", judge_pcie, each_gpu=True
    ),
    Check(
        "instances",
        "Are the GPUs whole?",
        "NVIDIA MIG user guide: no peer-to-peer between instances",
        judge_instances,
        each_gpu=True,
    ),
    Check(
        "compute-mode",
        "May processes open the GPUs?",
        "nvidia-smi manual, compute modes",
        judge_compute_mode,
        each_gpu=True,
    ),
    Check(
        "modules",
        "Is nvidia_uvm loaded?",
        "units with a device list cannot load it themselves",
        judge_modules,
        needs_gpus=True,
    ),
)
