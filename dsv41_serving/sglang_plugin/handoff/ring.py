"""Slots of a staging buffer: taken, given back, counted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Ring:
    """A fixed number of slots; whoever wants one waits, for a bounded time. Safe between threads."""

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        """All `slots` are free."""
        self._free = list(range(slots))
        self._taken: dict[int, float] = {}
        self._clock = clock
        self._changed = threading.Condition()

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return len(self._taken)

    def take(self, wait_s: float) -> int | None:
        """Return a free slot, the one that was given back first, or None when none became free within `wait_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._free), wait_s):
                return None
            slot = self._free.pop(0)
            self._taken[slot] = self._clock()
            return slot

    def give_back(self, slot: int) -> None:
        """Free a taken slot; one that is not taken is left alone, so that a word that comes twice frees nothing else."""
        with self._changed:
            if self._taken.pop(slot, None) is not None:
                self._free.append(slot)
                self._changed.notify()

    def oldest_s(self) -> float:
        """For how long the slot that was taken first is taken; 0 when none is."""
        with self._changed:
            return self._clock() - min(self._taken.values()) if self._taken else 0.0
