"""Waiting for something another process does: bounded so that a fault ends the test, without judging how long it took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 30.0
_T = TypeVar("_T")


def wait_for(look: Callable[[], _T], what: str) -> _T:
    """Return the first true value of `look`; fail when it has none within PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)
    return found
