"""Rests the scheduler while it has nothing to do but wait for a hand-off, so that the threads that hand over get the interpreter.

SGLang 0.5.23's loop never stops: with requests under way and no batch to run it looks at them again and again. Every thread of
its process needs the interpreter's lock for each message and each start of a copy, and waits for the loop to give it up.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dsv41_serving.sglang_plugin.drift import Patch

if TYPE_CHECKING:
    from collections.abc import Callable


class Rest:
    """The rests of one scheduler, each at most `longest_s` long. What a hand-off waits for ends a rest."""

    def __init__(self, longest_s: float) -> None:
        """Rest for at most `longest_s` seconds: that long a new request may wait for the loop to see it."""
        self._longest_s = longest_s
        self._news = threading.Event()

    def rest(self, _result: None, scheduler: Any) -> None:
        """The scheduler has no batch to run."""
        if is_handing_over(scheduler):
            self._news.wait(self._longest_s)
            # What came since the wait ended is seen as well: the loop looks next.
            self._news.clear()

    def wake(self, _result: None, *_args: Any) -> None:
        """The status of a request has changed, on whatever thread."""
        self._news.set()


def is_handing_over(scheduler: Any) -> bool:
    """Whether requests of this rank are on their way from or to the other side, and the scheduler can do nothing for them."""
    role = scheduler.disaggregation_mode.value
    if role == "prefill":
        return bool(scheduler.disagg_prefill_bootstrap_queue.queue or scheduler.disagg_prefill_inflight_queue)
    if role == "decode":
        # One that has no memory yet takes a step in every loop, and not all of its steps are changes of its status.
        entering = scheduler.disagg_decode_prealloc_queue
        return bool(scheduler.disagg_decode_transfer_queue.queue and not entering.queue and not entering.pending_reqs)
    return False


def make_hooks(longest_us: int) -> tuple[Patch, ...]:
    """Return the hooks that rest the scheduler; none for 0."""
    if not longest_us:
        return ()
    rest = Rest(longest_us / 1e6)
    why = "a scheduler that waits for a hand-off keeps the interpreter from the threads that do it"
    rows: tuple[tuple[str, str, Callable[..., Any], str], ...] = (
        (
            "sglang.srt.managers.scheduler.Scheduler.on_idle",
            "(self)",
            rest.rest,
            "it rests, until something changes or its time is over",
        ),
        (
            "sglang.srt.disaggregation.common.conn.CommonKVManager.update_status",
            "(self, bootstrap_room, status)",
            rest.wake,
            "a change of a request's status ends the rest",
        ),
    )
    return tuple(
        Patch(target=target, signature=signature, kind="after", hook=hook, why=why, effect=effect)
        for target, signature, hook, effect in rows
    )
