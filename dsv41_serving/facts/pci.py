"""What the PCI bus says: the place of a device, IOMMU groups, and ACS on the bridges above a GPU."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dsv41_serving.facts import files
from dsv41_serving.facts.model import Iommu

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_PASSTHROUGH_FLAGS = {"iommu=pt", "iommu.passthrough=1"}

# PCI Express Base Specification, extended capabilities: the list starts at 0x100; ACS has id 0x000d and its control
# register 6 bytes in. Bits that redirect peer traffic: request (2), completion (3), egress control (5). The kernel's
# own peer-to-peer code refuses a path on the same three (pci_bridge_has_acs_redir in drivers/pci/p2pdma.c).
_EXTENDED_CAPABILITIES = 0x100
_ACS_CAPABILITY = 0x000D
_ACS_CONTROL = 6
_ACS_REDIRECTS = 0b101100


def normalise_address(address: str) -> str:
    """Return a PCI address as sysfs spells it: NVML writes the domain with 8 digits. Raises ValueError when it is none."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(f"{address!r} is not a PCI address")
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def locate_device(root: Path, address: str) -> Path:
    """Return the sysfs directory of the device at `address`, which need not exist."""
    return root / "sys/bus/pci/devices" / address


def read_iommu(root: Path, addresses: Sequence[str]) -> Iommu:
    """Return whether DMA of the devices at `addresses` is translated; without addresses, of any device.

    The kernel gives the type of each IOMMU group: DMA and DMA-FQ translate, identity passes through
    (Documentation/ABI/testing/sysfs-kernel-iommu_groups). Where a kernel does not, its boot flags stand in.
    """
    if not (root / "sys/kernel").is_dir():
        return Iommu(mode="unknown", reason="sysfs is not mounted")
    every_group = sorted((root / "sys/kernel/iommu_groups").glob("*"))
    if not every_group:
        return Iommu(mode="off", reason="the kernel has no IOMMU groups (in a guest, the host's IOMMU is not visible)")
    groups = [locate_device(root, address) / "iommu_group" for address in addresses] or every_group
    types = {text for group in groups if (text := files.read_text(group / "type"))}
    whose = "the GPUs" if addresses else "the devices"
    if types & {"DMA", "DMA-FQ"}:
        return Iommu(mode="translated", reason=f"IOMMU groups of {whose} have type {', '.join(sorted(types))}")
    if types == {"identity"}:
        return Iommu(mode="passthrough", reason=f"IOMMU groups of {whose} have type identity")
    flags = set((files.read_text(root / "proc/cmdline") or "").split()) & _PASSTHROUGH_FLAGS
    if flags and not types:
        return Iommu(mode="passthrough", reason=f"the kernel was booted with {' '.join(sorted(flags))}")
    return Iommu(mode="unknown", reason=f"IOMMU groups of {whose} have type {', '.join(sorted(types)) or 'unknown'}")


def read_acs_bridges(root: Path, addresses: Sequence[str]) -> tuple[str, ...] | None:
    """Return the bridges above the devices at `addresses` whose ACS redirects peer traffic, by PCI address.

    None when none is known to, but the configuration space of some may not be read (it takes CAP_SYS_ADMIN).
    """
    redirects = {bridge: _redirects_peers(root, bridge) for bridge in _find_bridges(root, addresses)}
    found = tuple(sorted(bridge for bridge, redirect in redirects.items() if redirect))
    return None if not found and None in redirects.values() else found


def _find_bridges(root: Path, addresses: Sequence[str]) -> set[str]:
    """Return the addresses above the devices: sysfs nests a device in the directory of its bridge."""
    bridges: set[str] = set()
    for address in addresses:
        parents = locate_device(root, address).resolve().parents
        bridges.update(parent.name for parent in parents if _ADDRESS.fullmatch(parent.name))
    return bridges


def _redirects_peers(root: Path, bridge: str) -> bool | None:
    """Return whether ACS of `bridge` redirects peer traffic, or None when its configuration space may not be read."""
    try:
        descriptor = os.open(locate_device(root, bridge) / "config", os.O_RDONLY)
    except OSError:
        return None
    try:
        # Other users than root get the first 64 bytes, and an end of file after them.
        if len(os.pread(descriptor, 4, _EXTENDED_CAPABILITIES)) < 4:  # noqa: PLR2004 a register has 4 bytes
            return None
        for identity, offset in _walk_capabilities(descriptor):
            if identity == _ACS_CAPABILITY:
                control = int.from_bytes(os.pread(descriptor, 2, offset + _ACS_CONTROL), "little")
                return bool(control & _ACS_REDIRECTS)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _walk_capabilities(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield (id, offset) of each extended capability: a linked list, which ends at offset 0 or when it loops."""
    offset, seen = _EXTENDED_CAPABILITIES, {0}
    while offset not in seen:
        seen.add(offset)
        header = int.from_bytes(os.pread(descriptor, 4, offset), "little")
        yield header & 0xFFFF, offset
        offset = header >> 20
