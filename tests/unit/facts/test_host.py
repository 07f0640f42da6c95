"""Limits of the whole system, sysctls and the kernel log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.facts import count_oom_kills, read_facts
from dsv41_serving.facts.host import GpuFault, read_host

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, **files: str) -> None:
    """Write files below `root`; in a name `__` stands for a slash."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_machine_of_which_nothing_is_known(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    known = {key: value for key, value in host.model_dump().items() if value not in (None, ())}
    assert known == {}


def test_sysctls_modules_users_and_governors_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__sys__kernel__pid_max="4194304\n",
        proc__sys__net__core__somaxconn="4096\n",
        proc__sys__net__ipv4__ip_local_port_range="32768\t60999\n",
        proc__sys__net__ipv4__ip_local_reserved_ports="8998,30100-30102\n",
        sys__class__net__lo__flags="0x9\n",
        sys__module__nvidia_uvm__version="1\n",
        sys__module__xfs__version="1\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="performance\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_governor="powersave\n",
        etc__passwd="root:x:0:0::/root:/bin/sh\ndsv41:x:985:985::/var/lib/dsv41:/usr/sbin/nologin\n",  # noqa: S106 - a file name
    )
    host = read_host(tmp_path)
    assert (host.pid_max, host.somaxconn, host.port_range) == (4194304, 4096, (32768, 60999))
    assert host.reserved_ports == (8998, 30100, 30101, 30102)
    assert host.loopback_up is True
    assert host.modules == ("nvidia_uvm",)
    assert host.governors == ("performance", "powersave")
    assert host.users == ("dsv41", "root")


def test_processes_ended_for_lack_of_memory_are_counted(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) == 0
    write(tmp_path, proc__vmstat="nr_free_pages 12\noom_kill 7\nnuma_hit 5\n")
    assert count_oom_kills(tmp_path) == 7


def test_an_interface_that_is_down(tmp_path: Path) -> None:
    write(tmp_path, sys__class__net__lo__flags="0x8\n")
    assert read_host(tmp_path).loopback_up is False


def test_the_tightest_control_group_above_counts(tmp_path: Path) -> None:
    """A slice may cap what its service does not."""
    write(
        tmp_path,
        proc__self__cgroup="0::/dsv41.slice/dsv41-decode.service\n",
    )
    top = tmp_path / "sys/fs/cgroup/dsv41.slice"
    (top / "dsv41-decode.service").mkdir(parents=True)
    (top / "memory.max").write_text("1000\n")
    (top / "dsv41-decode.service/memory.max").write_text("max\n")
    (top / "dsv41-decode.service/pids.max").write_text("77\n")
    host = read_host(tmp_path)
    assert (host.memory_limit_bytes, host.pids_limit) == (1000, 77)


@pytest.mark.parametrize(("target", "first"), [("pid:[4026531836]", True), ("pid:[4026532214]", False)])
def test_the_first_pid_namespace_has_a_fixed_number(tmp_path: Path, target: str, *, first: bool) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(target)
    assert read_host(tmp_path).first_pid_namespace is first


def test_xids_are_picked_from_the_kernel_log(tmp_path: Path) -> None:
    write(
        tmp_path,
        dev__kmsg=(
            "6,1,1,-;usb 1-1: new device\n"
            "4,2,2,-;NVRM: Xid (PCI:0000:1B:00): 79, pid=1234, GPU has fallen off the bus.\n"
            "4,3,3,-;NVRM: Xid (PCI:0000:43:00): 31, pid=77, name=python3, MMU Fault\n"
        ),
    )
    assert read_host(tmp_path).gpu_faults == (
        GpuFault(pci_address="0000:1b:00", code=79),
        GpuFault(pci_address="0000:43:00", code=31),
    )


def test_a_malformed_port_range_is_bad_input(tmp_path: Path) -> None:
    write(tmp_path, proc__sys__net__ipv4__ip_local_port_range="many\n")
    with pytest.raises(InputError, match="expected two ports, found 'many'"):
        read_host(tmp_path)


def test_this_machine_is_read_without_trouble() -> None:
    host = read_host()
    assert host.pid_max is not None
    assert host.loopback_up is not None
    assert "root" in host.users
    assert read_facts().kernel_release
