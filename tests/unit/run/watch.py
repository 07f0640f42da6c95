"""Watching a supervisor or a stack: every state it went through, and waiting for one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_R = TypeVar("_R")


class Watch(Generic[_R]):
    """The records it was given, in order."""

    def __init__(self) -> None:
        """Begin with none."""
        self.records: list[_R] = []
        self._changed = asyncio.Event()

    def note(self, record: _R) -> None:
        """Take the newest record."""
        self.records.append(record)
        self._changed.set()

    async def see(self, wanted: Callable[[_R], bool], *, after: int = 0) -> _R:
        """Wait for a record that is `wanted`, past the first `after`; whoever calls bounds the time."""
        while True:
            for record in self.records[after:]:
                if wanted(record):
                    return record
            self._changed.clear()
            await self._changed.wait()
