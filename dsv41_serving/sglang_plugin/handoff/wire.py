"""What prefill and decode tell each other about packed blocks, in SGLang's own control messages.

    offer     decode -> prefill   one more frame of the registration: where its staging area is and what its pools look like
    arrival   prefill -> decode   blocks are written: their slots, and the items they hold of every group of pools
    credit    decode -> prefill   these slots are free again

An arrival goes over the socket that carries prefill's final word on the request, behind the write and before that word, so
decode has scattered the blocks before the request can be admitted, and before the pages of a cancelled one are released.
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
VERSION = 2


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
class Block:
    """What one slot holds."""

    slot: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Arrival:
    """Blocks that were written to slots of `area` for the request in bootstrap room `room`."""

    room: int
    area: int
    blocks: tuple[Block, ...]
    peer: str
    """Name of decode's NIXL agent, to be said with the credit."""
    host: str
    port: int
    """Where the credit goes."""

    def to_frames(self) -> list[bytes]:
        """Return the message."""
        slots = [[block.slot, [part.group for part in block.parts]] for block in self.blocks]
        head = json.dumps([self.room, self.area, slots, self.peer, self.host, self.port])
        items = (part.items for block in self.blocks for part in block.parts)
        return [ARRIVAL, head.encode(), *(each.astype(np.int32).tobytes() for each in items)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Arrival:
        """Read the message. Raises ValueError when it is none."""
        room, area, slots, peer, host, port = json.loads(frames[1])
        if len(frames) != 2 + sum(len(groups) for _, groups in slots):
            raise ValueError(f"{len(frames)} frames do not fit the slots {slots}")
        items = iter(frames[2:])
        blocks = tuple(
            Block(slot, tuple(Part(group, np.frombuffer(next(items), dtype=np.int32)) for group in groups))
            for slot, groups in slots
        )
        return cls(room, area, blocks, peer, host, port)


@dataclass(frozen=True)
class Credit:
    """The `slots` of the ring towards decode's agent `peer` are free."""

    peer: str
    slots: tuple[int, ...]

    def to_frames(self) -> list[bytes]:
        """Return the message."""
        return [CREDIT, self.peer.encode(), json.dumps(self.slots).encode()]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Credit:
        """Read the message. Raises ValueError when it is none."""
        return cls(frames[1].decode(), tuple(int(slot) for slot in json.loads(frames[2])))


def fingerprint(description: Any) -> str:
    """Return the SHA-256 of a JSON-able description of pools, in hexadecimal."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
