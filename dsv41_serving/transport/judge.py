"""Say whether a pair is as fast as its link, and when it is not, which of the known reasons it has and what mends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.facts.copying import Copying
    from dsv41_serving.facts.host import Host
    from dsv41_serving.facts.model import Facts

# NVIDIA H200 pairs over NVLink: 220 to 270 GB/s contiguous; falling back to tcp 0.4 (measured 2026-11-29, NIXL 1.5.1).
SLOW_GPU_GB_S = 2.0
FAST_NVLINK_GB_S = 50.0
_SHARED_LANES = {"cma", "sysv", "posix", "sm", "shm", "mm", "all", "xpmem", "knem"}


@dataclass(frozen=True)
class Verdict:
    """The reason is empty where the pair is as fast as it can be."""

    reason: str = ""
    remedy: str = ""


def judge_pair(
    lane: str,
    best_gb_s: float,
    *,
    gpus: tuple[int, int] | None,
    env: Mapping[str, str],
    facts: Facts,
    host: Host,
    copying: Copying,
) -> Verdict:
    """Return what is wrong with a pair of ranks: `gpus` are its two GPUs (None on a CPU), `env` what the engines get."""
    if gpus is None:
        return Verdict() if lane == "shm" else _explain_host_tcp(env, host, copying)
    nvlink = _is_linked(facts, gpus)
    if lane == "cuda_ipc" and (best_gb_s >= FAST_NVLINK_GB_S or (best_gb_s >= SLOW_GPU_GB_S and not nvlink)):
        return Verdict()
    if lane == "rdma" and best_gb_s >= SLOW_GPU_GB_S:
        return Verdict()
    return _explain_gpu(lane, best_gb_s, env, copying, nvlink=nvlink, host=host)


def _explain_host_tcp(env: Mapping[str, str], host: Host, copying: Copying) -> Verdict:
    tls = _list_tls(env)
    if tls and not _SHARED_LANES & set(tls):
        return Verdict(
            f"UCX_TLS = {','.join(tls)} names no lane inside the host: data goes through sockets",
            "remove UCX_TLS from engine.env, or add cma",
        )
    return _explain_refusal(copying, host) or Verdict(
        "data goes through sockets and nothing says why",
        "UCX_LOG_LEVEL=debug dsv41 transport prove shows what UCX tried",
    )


def _explain_gpu(
    lane: str, best_gb_s: float, env: Mapping[str, str], copying: Copying, *, nvlink: bool, host: Host
) -> Verdict:
    tls = _list_tls(env)
    allocator = " ".join(env.get(key, "") for key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")).lower()
    if tls and "all" not in tls and "cuda_ipc" not in tls:
        return Verdict(f"UCX_TLS = {','.join(tls)} lacks cuda_ipc", "add cuda_ipc,cuda_copy to engine.env.UCX_TLS")
    if "expandable_segments:true" in allocator:
        return Verdict(
            "expandable segments cannot be shared between processes", "remove expandable_segments from engine.env"
        )
    if refused := _explain_refusal(copying, host):
        return refused
    if not nvlink:
        return Verdict(
            f"no NVLink between the two GPUs, and {lane} gave {best_gb_s:.2f} GB/s",
            "nvidia-smi topo -p2p w; without peer access compare the shapes with `dsv41 bench compare`",
        )
    if lane == "cuda_ipc":
        return Verdict(
            f"{best_gb_s:.1f} GB/s over NVLink: a device of its own, or another load on the link",
            "nvidia-smi nvlink -s; run it again on an idle node",
        )
    return Verdict(
        f"UCX chose {lane} though the GPUs have NVLink", "set engine.env.UCX_TLS = 'cuda_ipc,cuda_copy,sm,tcp,self'"
    )


def _explain_refusal(copying: Copying, host: Host) -> Verdict | None:
    calls = {"pidfd_getfd": copying.pidfd_getfd, "process_vm_readv": copying.process_vm_readv}
    refused = [f"{name}: {what}" for name, what in calls.items() if what != "ok"]
    if refused:
        return Verdict(
            f"the kernel refuses copies between processes ({', '.join(refused)})",
            "sudo sysctl -w kernel.yama.ptrace_scope=0; in a unit SystemCallFilter=pidfd_getfd and no PrivateUsers",
        )
    if host.first_pid_namespace is False:
        return Verdict("a PID namespace of its own hides the peer", "run both engines in one, or with --pid=host")
    return None


def _list_tls(env: Mapping[str, str]) -> list[str]:
    return [lane for lane in env.get("UCX_TLS", "").split(",") if lane]


def _is_linked(facts: Facts, gpus: tuple[int, int]) -> bool:
    first = next((gpu for gpu in facts.gpus if gpu.index == gpus[0]), None)
    return first is not None and gpus[1] in (first.links or ())
