"""Does the kernel let processes of one user copy from each other, and start as many as are needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsv41_serving.preflight.check import Check, failed, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_OLDEST = (5, 6)  # pidfd_getfd
_TASKS = 32_768


def judge_version(scene: Scene) -> Outcome | None:
    """Return whether the kernel has pidfd_getfd, with which CUDA memory is shared between processes."""
    release = scene.facts.kernel_release or ""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        return warned("the kernel does not say its version", "uname -r")
    if (int(found[1]), int(found[2])) < _OLDEST:
        return failed(f"Linux {release} lacks pidfd_getfd", "install a kernel of 5.6 or newer")
    return passed(f"Linux {release}")


def judge_ptrace(scene: Scene) -> Outcome | None:
    """Return whether Yama lets processes of one user reach each other."""
    scope = scene.facts.kernel.ptrace_scope
    if scope:
        outcome = failed if scene.on_gpus else warned
        return outcome(
            f"kernel.yama.ptrace_scope = {scope}: the hand-off falls to a slow lane in silence",
            "sudo sysctl -w kernel.yama.ptrace_scope=0 (and in /etc/sysctl.d/)",
        )
    return passed("no Yama" if scope is None else "kernel.yama.ptrace_scope = 0")


def judge_copying(scene: Scene) -> Outcome | None:
    """Return whether one process of the service user, or of this one, could really copy from another, both ways UCX does."""
    calls = {"pidfd_getfd": scene.copying.pidfd_getfd, "process_vm_readv": scene.copying.process_vm_readv}
    refused = {name: what for name, what in calls.items() if what != "ok"}
    if refused:
        named = ", ".join(f"{name}: {what}" for name, what in refused.items())
        outcome = failed if scene.on_gpus else warned
        return outcome(
            named,
            "sysctl kernel.yama.ptrace_scope; in a unit: SystemCallFilter=pidfd_getfd, no PrivateUsers; in a container: --cap-add SYS_PTRACE",
        )
    return passed(f"pidfd_getfd and process_vm_readv between two processes of {scene.copying.user or 'this user'}")


def judge_namespace(scene: Scene) -> Outcome | None:
    """Return whether this is the host's own PID namespace, where both engines see each other's pids."""
    if scene.host.first_pid_namespace is False:
        return warned(
            "a PID namespace of its own: engines in two of them hand over by tcp, and ranks cannot open each other's memory",
            "start both engines in one container, or with --pid=host",
        )
    return passed("the host's own" if scene.host.first_pid_namespace else "not visible")


def judge_tasks(scene: Scene) -> Outcome | None:
    """Return whether enough threads can exist."""
    limits = {
        "kernel.pid_max": scene.host.pid_max,
        "kernel.threads-max": scene.host.threads_max,
        "pids.max": scene.host.pids_limit,
    }
    low = {name: value for name, value in limits.items() if value is not None and value < _TASKS}
    if low:
        named = ", ".join(f"{name} = {value}" for name, value in low.items())
        return warned(
            named,
            f"sudo sysctl -w kernel.pid_max=4194304 kernel.threads-max={_TASKS * 8}; TasksMax=infinity in the slice",
        )
    return passed("no limit below what eight ranks and their compilers start")


def judge_governor(scene: Scene) -> Outcome | None:
    """Return whether CPUs run at full speed: the launch of a decode step waits for one thread."""
    slow = [name for name in scene.host.governors if name != "performance"]
    if slow:
        return warned(f"CPU governor {', '.join(slow)}", "sudo cpupower frequency-set -g performance")
    return passed("performance" if scene.host.governors else "no frequency scaling here")


CHECKS = (
    Check("version", "Has the kernel what CUDA IPC needs?", "pidfd_getfd(2): Linux 5.6", judge_version),
    Check("ptrace", "Does Yama let one user's processes reach each other?", "ucx#3046, ucc#1218", judge_ptrace),
    Check(
        "copying",
        "Can one process copy from another?",
        "ucx#11978; measured under systemd: a filter refuses in silence",
        judge_copying,
    ),
    Check(
        "namespace",
        "Is this the host's PID namespace?",
        "ucx#11978; SGLang 0.5.23: cannot open rank 0's memfd",
        judge_namespace,
    ),
    Check("tasks", "Can enough threads exist?", "systemd, TasksMax", judge_tasks),
    Check("governor", "Do the CPUs run at full speed?", "rtx6kpro wiki", judge_governor, needs_gpus=True),
)
