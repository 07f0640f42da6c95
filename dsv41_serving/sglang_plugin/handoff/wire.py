"""What prefill and decode tell each other about packed blocks, in SGLang's own control messages.

    offer     decode -> prefill   one more frame of the registration: where its staging area is and what its pools look like
    arrival   prefill -> decode   a block is written: slot, and the items it holds of every group of pools
    credit    decode -> prefill   the slot is free again

An arrival goes over the socket that carries prefill's final word on the request, behind the write and before that word, so
decode has scattered a block before the request can be admitted, and before the pages of a cancelled one are released.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

ARRIVAL = b"DSV41_ARRIVAL"
CREDIT = b"DSV41_CREDIT"
VERSION = 1


@dataclass(frozen=True)
class Part:
    """Items of one group of pools: the group's number and int32 [items] item numbers."""

    group: int
    items: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Offer:
    """A staging area of decode that one prefill rank may write to."""

    area: int
    """Its number at decode."""
    address: int
    slots: int
    slot_bytes: int
    layout: str
    """Fingerprint of decode's pools; a block fits only the same ones."""
    version: int = VERSION

    def to_frame(self) -> bytes:
        """Return the frame of the registration message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_frame(cls, frame: bytes) -> Offer | None:
        """Read the frame; None when it is from another version of this plug-in or from somebody else."""
        try:
            read = json.loads(frame)
            return cls(**read) if read["version"] == VERSION else None
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Arrival:
    """A block that was written into `slot` of `area` for the request in bootstrap room `room`."""

    room: int
    area: int
    slot: int
    parts: tuple[Part, ...]
    peer: str
    """Name of decode's NIXL agent, to be said with the credit."""
    host: str
    port: int
    """Where the credit goes."""

    def to_frames(self) -> list[bytes]:
        """Return the message."""
        head = json.dumps([self.room, self.area, self.slot, self.peer, self.host, self.port])
        groups = np.array([part.group for part in self.parts], dtype=np.int32)
        return [
            ARRIVAL,
            head.encode(),
            groups.tobytes(),
            *(part.items.astype(np.int32).tobytes() for part in self.parts),
        ]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Arrival:
        """Read the message. Raises ValueError when it is none."""
        room, area, slot, peer, host, port = json.loads(frames[1])
        groups = np.frombuffer(frames[2], dtype=np.int32)
        parts = tuple(
            Part(int(group), np.frombuffer(items, dtype=np.int32))
            for group, items in zip(groups, frames[3:], strict=True)
        )
        return cls(room, area, slot, parts, peer, host, port)


@dataclass(frozen=True)
class Credit:
    """Slot `slot` of the ring towards decode's agent `peer` is free."""

    peer: str
    slot: int

    def to_frames(self) -> list[bytes]:
        """Return the message."""
        return [CREDIT, self.peer.encode(), str(self.slot).encode()]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Credit:
        """Read the message."""
        return cls(frames[1].decode(), int(frames[2]))


def fingerprint(description: Any) -> str:
    """Return the SHA-256 of a JSON-able description of pools, in hexadecimal."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
