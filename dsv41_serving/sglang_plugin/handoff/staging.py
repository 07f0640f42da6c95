"""What both sides have: the staging buffer, registered once with NIXL, and the engine's pools, read once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.utils.network import NetworkAddress

from dsv41_serving.sglang_plugin.handoff import metrics
from dsv41_serving.sglang_plugin.handoff.pools import (
    Copier,
    Group,
    UnpackableError,
    describe_layout,
    make_copier,
    read_groups,
)

if TYPE_CHECKING:
    from dsv41_serving.spec.model import Handoff

logger = logging.getLogger(__name__)

_MEMORY = "VRAM"


class Side:
    """Staging areas of one rank, each of `slots` slots. Made when the first peer that packs is met."""

    def __init__(self, table: Handoff) -> None:
        """Hold no memory yet."""
        self.slots = table.slots
        self.slot_bytes = table.slot_bytes
        self._area_bytes = table.area_bytes
        self.groups: tuple[Group, ...] = ()
        self.copier: Copier
        self._layout = ""
        self._areas: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def prepare(self, manager: Any) -> str:
        """Read the pools of the engine, make the first area, and return the fingerprint of the pools.

        Raises UnpackableError when they cannot be packed.
        """
        with self._lock:
            if not self._layout:
                groups = read_groups(manager.kv_args)
                self.copier = make_copier(groups, device_of(manager))
                self.groups = groups
                self._layout = describe_layout(manager.kv_args, ranks=manager.attn_tp_size)
                self._add_area(manager)
            return self._layout

    def address(self, manager: Any, area: int) -> int:
        """Return where `area` begins; it is made when it is the next one."""
        with self._lock:
            if area == len(self._areas):
                self._add_area(manager)
            return self._areas[area].data_ptr()

    def block(self, area: int, slot: int) -> torch.Tensor:
        """Return a slot as uint8 [slot_bytes]. Raises ValueError for one that does not exist."""
        if not (0 <= area < len(self._areas) and 0 <= slot < self.slots):
            raise ValueError(f"there is no slot {slot} of area {area}")
        return self._areas[area][slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def make_write(self, manager: Any, peer: str, *, slot: int, address: int, size: int, device: int) -> Any:
        """Return a handle that writes `size` bytes from `slot` to `address` at `peer` once posted. NIXL's errors are raised."""
        agent, here = manager.agent, self.block(0, slot).data_ptr()
        source = agent.get_xfer_descs([(here, size, manager.kv_args.gpu_id)], _MEMORY)
        target = agent.get_xfer_descs([(address, size, device)], _MEMORY)
        handle = agent.initialize_xfer("WRITE", source, target, peer)
        if not handle:
            raise RuntimeError("NIXL made no transfer of a packed block")
        return handle

    def send(self, manager: Any, endpoint: tuple[str, int], frames: list[bytes]) -> None:
        """Send a message over the engine's control socket to `endpoint`."""
        address = NetworkAddress(*endpoint)
        manager._send_multipart_locked(address.to_tcp(), frames, is_ipv6=address.is_ipv6)  # noqa: SLF001 - keeps the order

    def _add_area(self, manager: Any) -> None:
        # Written once here: the first blocks would pay for the pages of host memory otherwise.
        area = torch.zeros(self._area_bytes, dtype=torch.uint8, device=device_of(manager))
        place = [(area.data_ptr(), area.nbytes, manager.kv_args.gpu_id, "")]
        if not manager.agent.register_memory(place, _MEMORY):
            raise UnpackableError("NIXL did not register the staging buffer")
        self._areas.append(area)
        metrics.staging_bytes().inc(area.nbytes)


def device_of(manager: Any) -> torch.device:
    """Return the device of the engine's pools."""
    from sglang.srt.runtime_context import get_device  # noqa: PLC0415 - set once the engine runs

    kind = get_device().device
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, manager.kv_args.gpu_id)
