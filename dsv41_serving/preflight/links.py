"""Can the GPUs reach each other, and can the hand-off take a fast lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.preflight.check import Check, failed, passed, warned
from dsv41_serving.transport.proof import explain_stale

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.facts.model import Gpu
    from dsv41_serving.preflight.check import Outcome, Scene

_CUDA_LANES = ("cuda_ipc", "cuda_copy")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def judge_nvlink(scene: Scene) -> Outcome | None:
    """Return whether the GPUs of each group, and the two groups, reach each other over NVLink."""
    missing = _list_missing_pairs(scene, lambda gpu: gpu.links)
    if missing is None:
        return warned("the driver does not say", "nvidia-smi topo -m")
    if missing:
        return warned(
            f"no NVLink between {_name_pairs(missing)}: collectives and hand-off go over PCIe, where no public report shows a gain of PD",
            "dsv41 bench compare of shapes pd, replicas and tp8 before choosing one",
        )
    return passed("between all GPUs of the plan")


def judge_peer_access(scene: Scene) -> Outcome | None:
    """Return whether the driver offers direct access between the GPUs."""
    missing = _list_missing_pairs(scene, lambda gpu: gpu.health.p2p_peers)
    if missing is None:
        return warned("the driver does not say", "nvidia-smi topo -p2p r")
    if missing:
        return warned(
            f"no peer access between {_name_pairs(missing)}: data goes through host memory",
            "nvidia-smi topo -p2p r; in the firmware, enable above-4G decoding and resizable BAR, and disable ACS",
        )
    return passed("offered between all GPUs of the plan; `dsv41 transport prove` tells whether it works")


def judge_iommu(scene: Scene) -> Outcome | None:
    """Return whether DMA between GPUs goes untranslated."""
    iommu = scene.facts.kernel.iommu
    if iommu.mode == "translated":
        return warned(
            f"{iommu.reason}: together with ACS the first all-reduce hangs",
            "add iommu=pt to the kernel command line and reboot (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub)",
        )
    if iommu.mode == "unknown":
        return warned(iommu.reason, "cat /sys/kernel/iommu_groups/*/type")
    return passed(f"{iommu.mode}: {iommu.reason}")


def judge_acs(scene: Scene) -> Outcome | None:
    """Return whether bridges let peer traffic pass."""
    bridges = scene.facts.kernel.acs_bridges
    if bridges is None:
        return warned("this user may not read the bridges", "sudo dsv41 preflight")
    if bridges:
        named = ", ".join(bridges)
        outcome = failed if scene.facts.kernel.iommu.mode == "translated" else warned
        return outcome(
            f"ACS sends peer traffic up to the root at {named}",
            f"disable ACS in the firmware, or: sudo setpci -s {bridges[0]} ECAP_ACS+0x6.w=0000 (each bridge, each boot)",
        )
    return passed("no bridge above a GPU redirects peer traffic")


def judge_lanes(scene: Scene) -> Outcome | None:
    """Return whether UCX may use the lanes it needs: CUDA's for data, tcp for control messages."""
    problems = []
    for engine in scene.plan.engines:
        text = engine.env.get("UCX_TLS")
        if text is None or text in {"all", ""}:
            continue
        lanes = text.split(",")
        needed = ["tcp", *(_CUDA_LANES if scene.on_gpus else ())]
        missing = [lane for lane in needed if lane not in lanes]
        if missing:
            problems.append(f"{engine.name}: UCX_TLS lacks {', '.join(missing)}")
    if problems:
        return failed(
            "; ".join(problems),
            "set engine.env.UCX_TLS = 'cuda_ipc,cuda_copy,sm,tcp,self': without tcp control messages have no way, "
            "without cuda_ipc data falls to tcp",
        )
    return passed("the transports of the plan can carry data and control messages")


def judge_fabric_lanes(scene: Scene) -> Outcome | None:
    """Return whether one-host engines leave the network card out."""
    used = [
        engine.name
        for engine in scene.plan.engines
        if any(lane.startswith("rc") for lane in engine.env.get("UCX_TLS", "").split(","))
    ]
    if used:
        return warned(
            f"{', '.join(used)}: UCX_TLS names an rc transport on one host",
            "remove rc from engine.env.UCX_TLS: a restarted decode at the same address crashes prefill",
        )
    return passed("no network card between engines of one host")


def judge_allocator(scene: Scene) -> Outcome | None:
    """Return whether the allocator gives memory that another process can map."""
    used = [
        f"{engine.name}: {variable}"
        for engine in scene.plan.engines
        for variable in _ALLOCATOR
        if "expandable_segments:true" in engine.env.get(variable, "").lower()
    ]
    if used:
        return failed(
            f"expandable segments in {', '.join(used)}: the hand-off falls to tcp in silence",
            "remove expandable_segments from engine.env",
        )
    return passed("ordinary segments")


def judge_hand_off(scene: Scene) -> Outcome | None:
    """Return whether the hand-off was proven on this machine as it is now."""
    if not scene.hands_off:
        return None
    proof = scene.traces.transport
    if scene.hand_off_problem:
        return failed(scene.hand_off_problem, "dsv41 transport prove")
    problem = "never measured on this node" if proof is None else explain_stale(proof, scene.plan, scene.facts)
    if scene.traces.running and problem:
        return passed(f"{problem}; the next start measures it, not beside what serves")
    if proof is None or problem:
        return warned(problem, "dsv41 transport prove")
    if proof.reason:
        # Sockets between GPUs are a fall-back that nobody chose; between processes of a laptop they are slow, and work.
        outcome = failed if scene.on_gpus and proof.lane == "tcp" else warned
        return outcome(f"{proof.best_gb_s:.2f} GB/s over {proof.lane}: {proof.reason}", proof.remedy)
    return passed(f"{proof.best_gb_s:.2f} GB/s over {proof.lane}, measured {proof.date}")


def judge_all_reduce(scene: Scene) -> Outcome | None:
    """Return whether the GPUs of each group sum correctly together."""
    proof = scene.traces.transport
    if proof is None or not proof.collectives or explain_stale(proof, scene.plan, scene.facts):
        return None
    broken = [f"{each.engine}: {each.problem}" for each in proof.collectives if each.problem]
    if broken:
        return failed(
            "; ".join(broken), "mend what links.iommu, links.acs and links.peer-access say; dsv41 transport prove"
        )
    return passed(", ".join(f"{each.engine} {each.bus_gb_s:.1f} GB/s" for each in proof.collectives))


def _list_missing_pairs(scene: Scene, read: Callable[[Gpu], tuple[int, ...] | None]) -> list[tuple[int, int]] | None:
    """Return the pairs of GPUs in the plan that `read` does not connect; None when it is unknown for any."""
    reached = {gpu.index: read(gpu) for gpu in scene.gpus}
    if any(peers is None for peers in reached.values()):
        return None
    indices = sorted(reached)
    return [
        (first, second)
        for first in indices
        for second in indices
        if first < second and second not in (reached[first] or ())
    ]


def _name_pairs(pairs: list[tuple[int, int]]) -> str:
    first = pairs[0]
    return f"GPU {first[0]} and {first[1]}" + (f" ({len(pairs)} pairs)" if len(pairs) > 1 else "")


CHECKS = (
    Check(
        "nvlink",
        "Do the GPUs reach each other over NVLink?",
        "RTX PRO 6000 reports: PD over PCIe and tcp loses 15 to 80 %",
        judge_nvlink,
        each_gpu=True,
        needs_plan=True,
    ),
    Check(
        "peer-access",
        "Does the driver offer peer access?",
        "vllm#51513",
        judge_peer_access,
        each_gpu=True,
        needs_plan=True,
    ),
    Check("iommu", "Is GPU DMA untranslated?", "nccl#1999, rtx6kpro#15", judge_iommu, each_gpu=True),
    Check("acs", "Do bridges let peer traffic pass?", "nccl#2079", judge_acs, each_gpu=True),
    Check("lanes", "Can UCX carry data and control messages?", "vllm#26382, sglang#6694", judge_lanes, needs_plan=True),
    Check(
        "fabric-lanes", "Does the hand-off stay off the network card?", "smg#2503", judge_fabric_lanes, needs_plan=True
    ),
    Check(
        "allocator",
        "Can another process map the KV memory?",
        "ucx#11550: expandable segments have no exportable handle",
        judge_allocator,
        needs_gpus=True,
        needs_plan=True,
    ),
    Check(
        "hand-off",
        "Was the speed of the hand-off measured?",
        "vllm#52607: 0.5 instead of 49 GB/s, unnoticed",
        judge_hand_off,
        needs_plan=True,
    ),
    Check(
        "all-reduce",
        "Do the GPUs of each group sum correctly?",
        "nccl#1999: with broken P2P the first all-reduce hangs, long after the weights are loaded",
        judge_all_reduce,
        each_gpu=True,
        needs_plan=True,
    ),
)
