"""What a preflight asks of a machine besides what the plan needs: limits of the whole system, sysctls, kernel log."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dsv41_serving.facts import files
from dsv41_serving.facts.kernel import read_limits
from dsv41_serving.facts.model import Limits  # noqa: TC001 - pydantic reads it

# The kernel numbers the first PID namespace so (PROC_PID_INIT_INO in include/linux/proc_ns.h).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
_KMSG_BYTES = 8192  # longest record of /dev/kmsg
_LOOPBACK_UP = 0x1  # IFF_UP


class GpuFault(BaseModel):
    """One Xid: the driver's report of a fault, as the kernel log keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pci_address: str
    """Without the function, for example 0000:1b:00."""
    code: int


class Host(BaseModel):
    """The rest of a machine. None means that the machine does not say, or not to this user."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    pid_max: int | None
    threads_max: int | None
    somaxconn: int | None
    """Longest queue of connections not yet accepted."""
    port_range: tuple[int, int] | None
    """First and last port that the kernel gives to outgoing connections."""
    reserved_ports: tuple[int, ...]
    """Ports it never gives, ascending."""
    governors: tuple[str, ...]
    """CPU frequency governors in use, sorted; empty where the machine has no frequency scaling."""
    first_pid_namespace: bool | None
    """Whether this process lives in the host's own PID namespace."""
    memory_limit_bytes: int | None
    """Smallest memory.max above this process; None without a limit."""
    pids_limit: int | None
    """Smallest pids.max above this process; None without a limit."""
    loopback_up: bool | None
    modules: tuple[str, ...]
    """Kernel modules of NVIDIA and of RDMA that are loaded, sorted."""
    init_limits: Limits | None
    """Limits of process 1, which bound what systemd can give to a service; root alone may read them."""
    users: tuple[str, ...]
    """Names in /etc/passwd, sorted."""
    gpu_faults: tuple[GpuFault, ...] | None
    """Xids in the kernel log since boot; None when this user may not read the log."""


def read_host(root: Path = Path("/")) -> Host:
    """Return what the machine below `root` says. Raises InputError when a file of the kernel is malformed."""
    sysctl = root / "proc/sys"
    return Host(
        pid_max=files.read_int(sysctl / "kernel/pid_max"),
        threads_max=files.read_int(sysctl / "kernel/threads-max"),
        somaxconn=files.read_int(sysctl / "net/core/somaxconn"),
        port_range=_read_port_range(sysctl / "net/ipv4/ip_local_port_range"),
        reserved_ports=files.read_cpu_list(sysctl / "net/ipv4/ip_local_reserved_ports") or (),
        governors=_read_governors(root),
        first_pid_namespace=_is_first_pid_namespace(root),
        memory_limit_bytes=_read_cgroup_limit(root, "memory.max"),
        pids_limit=_read_cgroup_limit(root, "pids.max"),
        loopback_up=_is_loopback_up(root),
        modules=_list_modules(root),
        init_limits=read_limits(root, 1),
        users=_list_users(root),
        gpu_faults=_read_gpu_faults(root / "dev/kmsg"),
    )


def _read_port_range(path: Path) -> tuple[int, int] | None:
    text = files.read_text(path)
    if text is None:
        return None
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # noqa: PLR2004 first and last
        raise files.malformed(path, f"expected two ports, found {text[:40]!r}")
    return int(words[0]), int(words[1])


def _read_governors(root: Path) -> tuple[str, ...]:
    found = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({text for path in found if (text := files.read_text(path))}))


def _is_first_pid_namespace(root: Path) -> bool | None:
    try:
        name = os.readlink(root / "proc/self/ns/pid")  # noqa: PTH115 - the target is a name, not a path
    except OSError:
        return None
    return name == f"pid:[{_FIRST_PID_NAMESPACE}]"


def _read_cgroup_limit(root: Path, name: str) -> int | None:
    """Return the smallest limit `name` on the way from this process's cgroup (v2) to the root of the hierarchy."""
    found = re.search(r"^0::/(.*)$", files.read_text(root / "proc/self/cgroup") or "", re.MULTILINE)
    if found is None:
        return None
    top = root / "sys/fs/cgroup"
    own = top / found[1]
    texts = (files.read_text(directory / name) for directory in (own, *own.parents) if directory.is_relative_to(top))
    return min((int(text) for text in texts if text and text.isdecimal()), default=None)


def _is_loopback_up(root: Path) -> bool | None:
    flags = files.read_text(root / "sys/class/net/lo/flags")
    return None if flags is None else bool(int(flags, 16) & _LOOPBACK_UP)


def _list_modules(root: Path) -> tuple[str, ...]:
    return tuple(
        sorted(path.name for path in (root / "sys/module").glob("*") if re.match(r"nvidia|gdrdrv|ib_", path.name))
    )


def _list_users(root: Path) -> tuple[str, ...]:
    lines = (files.read_text(root / "etc/passwd") or "").splitlines()
    return tuple(sorted(line.partition(":")[0] for line in lines if ":" in line))


def _read_gpu_faults(path: Path) -> tuple[GpuFault, ...] | None:
    """Return the Xids of the kernel log: each read of /dev/kmsg gives one record, and never waits for the next."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found = []
    try:
        while record := _read_record(descriptor):
            found += re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)\): (\d+)", record.decode(errors="replace"))
    finally:
        os.close(descriptor)
    return tuple(GpuFault(pci_address=address.lower(), code=int(code)) for address, code in found)


def _read_record(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _KMSG_BYTES)
        except BlockingIOError:
            return b""  # the log ends here
        except BrokenPipeError:
            continue  # this record was overwritten meanwhile; the next read gives the oldest that is left
