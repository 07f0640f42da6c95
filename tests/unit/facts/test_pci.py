"""IOMMU and ACS: what stands between two GPUs on PCI Express."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Iommu, read_facts
from dsv41_serving.facts.pci import normalise_address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00010000:C1:00.0", "10000:c1:00.0"),  # a domain that needs more than 4 digits
    ],
)
def test_nvml_addresses_become_those_of_sysfs(nvml: str, sysfs: str) -> None:
    """NVML writes 8 digits of domain in upper case, sysfs at least 4 in lower case."""
    assert normalise_address(nvml) == sysfs


def test_redirecting_bridges_are_named(machine: Callable[[str], Path]) -> None:
    """Each root port of the crosswise machine redirects; its switches do not."""
    ports = ("19", "41", "50", "5f", "9b", "c1", "cf", "dd")
    assert read_facts(machine("crosswise-8gpu")).kernel.acs_bridges == tuple(f"0000:{bus}:01.0" for bus in ports)


def test_source_validation_alone_does_not_redirect(two_sockets: Path) -> None:
    """ACS may be on without touching peer traffic."""
    assert read_facts(two_sockets).kernel.acs_bridges == ()


def test_short_configuration_space_is_not_called_clean(two_sockets: Path) -> None:
    """Users other than root get 64 bytes: nothing is known, which is not the same as no bridge."""
    config = two_sockets / "sys/bus/pci/devices/0000:19:01.0/config"
    config.write_bytes(config.read_bytes()[:64])
    assert read_facts(two_sockets).kernel.acs_bridges is None


def test_a_known_redirect_is_named_even_when_others_may_not_be_read(machine: Callable[[str], Path]) -> None:
    """One known culprit is worth more than a refusal."""
    root = machine("crosswise-8gpu")
    (root / "sys/bus/pci/devices/0000:19:01.0/config").unlink()
    bridges = read_facts(root).kernel.acs_bridges
    assert bridges is not None
    assert "0000:19:01.0" not in bridges
    assert "0000:41:01.0" in bridges


def test_a_looping_capability_list_ends(two_sockets: Path) -> None:
    """A device that is broken or gone (all bits set) must not hang the reader."""
    config = two_sockets / "sys/bus/pci/devices/0000:19:01.0/config"
    looping = bytearray(4096)
    looping[0x100:0x104] = (0x100 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    config.write_bytes(looping)
    assert read_facts(two_sockets).kernel.acs_bridges == ()
    config.write_bytes(b"\xff" * 4096)
    assert read_facts(two_sockets).kernel.acs_bridges == ()


@pytest.mark.parametrize(
    ("group_type", "command_line", "expected"),
    [
        ("DMA", "", Iommu(mode="translated", reason="IOMMU groups of the GPUs have type DMA")),
        ("identity", "", Iommu(mode="passthrough", reason="IOMMU groups of the GPUs have type identity")),
        ("blocked", "iommu=pt", Iommu(mode="unknown", reason="IOMMU groups of the GPUs have type blocked")),
        ("", "quiet iommu=pt", Iommu(mode="passthrough", reason="the kernel was booted with iommu=pt")),
        ("", "quiet", Iommu(mode="unknown", reason="IOMMU groups of the GPUs have type unknown")),
    ],
)
def test_iommu_mode(two_sockets: Path, group_type: str, command_line: str, expected: Iommu) -> None:
    """The type of the groups decides; the boot flags only where the kernel gives no type."""
    (two_sockets / "sys/kernel/iommu_groups/0/type").write_text(group_type)
    (two_sockets / "proc/cmdline").write_text(command_line)
    assert read_facts(two_sockets).kernel.iommu == expected


def test_no_groups_mean_no_iommu(two_sockets: Path) -> None:
    """The hint says what a guest cannot see."""
    groups = two_sockets / "sys/kernel/iommu_groups"
    (groups / "0/type").unlink()
    (groups / "0").rmdir()
    iommu = read_facts(two_sockets).kernel.iommu
    assert iommu.mode == "off"
    assert "host's IOMMU is not visible" in iommu.reason
