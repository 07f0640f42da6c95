"""Other processes in a test: waiting for what they do, bounded so that a fault ends the test, without judging the time."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@contextmanager
def sleeping_process() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that does nothing, in a session of its own; it has ended and was reaped at the end."""
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
