"""Decode's side of the packed hand-off: it offers staging areas, scatters blocks as they arrive, and gives slots back."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.base.conn import KVPoll

from dsv41_serving.sglang_plugin.handoff import metrics
from dsv41_serving.sglang_plugin.handoff.pools import UnpackableError, size_of
from dsv41_serving.sglang_plugin.handoff.staging import Side, logger
from dsv41_serving.sglang_plugin.handoff.wire import ARRIVAL, Arrival, Credit, Offer
from dsv41_serving.spec.model import MOST_AREAS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.sglang_plugin.handoff.pools import Copy


class Receiver:
    """The unpacking of one decode rank. Registration comes on any thread, arrivals on SGLang's one listening thread."""

    def __init__(self, side: Side) -> None:
        """Offer areas of the size that `side` says."""
        self._side = side
        self._areas: dict[str, int] = {}
        self._thread = threading.local()
        self._lock = threading.Lock()

    def register(self, original: Callable[..., bool], receiver: Any) -> bool:
        """Remember while a registration is built whom it is for; one that goes to several ranks carries no offer."""
        self._thread.prefill = receiver.bootstrap_addr if len(receiver.bootstrap_infos or ()) == 1 else None
        try:
            return original(receiver)
        finally:
            self._thread.prefill = None

    def offer(self, original: Callable[..., list[bytes]], manager: Any) -> list[bytes]:
        """Add an offer to a registration; a prefill that was started again at its address gets the same area."""
        prefill = getattr(self._thread, "prefill", None)
        if prefill is None:
            return original(manager)
        try:
            layout = self._side.prepare(manager)
            area, address = self._find_area(manager, prefill)
        except UnpackableError as error:
            metrics.fallbacks().labels("layout").inc()
            logger.warning("packed hand-off: nothing offered to %s, %s", prefill, error)
            return original(manager)
        offer = Offer(area, address, self._side.slots, self._side.slot_bytes, layout)
        # After the memory is registered: the message carries what the agent has registered by now.
        return [*original(manager), offer.to_frame()]

    def take(self, original: Callable[..., bool], manager: Any, msg: list[bytes]) -> bool:
        """Take an arrival from among prefill's messages; the rest are SGLang's."""
        if not msg or msg[0] != ARRIVAL:
            return original(manager, msg)
        try:
            arrival = Arrival.from_frames(msg)
        except (ValueError, IndexError, TypeError):
            logger.warning("packed hand-off: a message that cannot be read was dropped")
            return True
        self._scatter(manager, arrival)
        free = Credit(arrival.peer, tuple(block.slot for block in arrival.blocks))
        self._side.send(manager, (arrival.host, arrival.port), free.to_frames())
        return True

    def _find_area(self, manager: Any, prefill: str) -> tuple[int, int]:
        """Return number and address of the area of the prefill engine at `prefill`; one of its ranks sends to this rank."""
        with self._lock:
            area = self._areas.get(prefill, len(self._areas))
            if area >= MOST_AREAS:
                raise UnpackableError(f"{MOST_AREAS} prefill engines have an area already")
            address = self._side.address(manager, area)
            self._areas[prefill] = area
            return area, address

    def _scatter(self, manager: Any, arrival: Arrival) -> None:
        """Scatter blocks into the pages of their request, unless it has ended; a fault ends the request, never in success."""
        began = time.perf_counter()
        # The pages of a cancelled request stay its own until prefill says it has drained, which comes after every arrival.
        if manager.request_status.get(arrival.room) in (None, KVPoll.Failed):
            return
        copies: list[Copy] = []
        try:
            for block in arrival.blocks:
                size = size_of(self._side.groups, block.parts)
                source = self._side.block(arrival.area, block.slot)[:size]
                copies.append(self._side.copier.unpack(block.parts, source))
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on and the request ends
            _fail(manager, arrival.room, error)
        started = time.perf_counter()
        # Also after a fault: a slot whose block is still read must not be given back.
        for copy in copies:
            try:
                copy.wait()
            except Exception as error:  # noqa: BLE001 - as above
                _fail(manager, arrival.room, error)
        metrics.stage_seconds().labels("launch").observe(started - began)
        metrics.stage_seconds().labels("unpack").observe(time.perf_counter() - started)


def _fail(manager: Any, room: int, error: Exception) -> None:
    logger.exception("packed hand-off: room %s", room)
    manager.record_failure(room, f"A packed block could not be scattered: {error}")
    manager.update_status(room, KVPoll.Failed)


def read_offer(info: Any, _class: type, msg: list[bytes]) -> Any:
    """Keep the offer of a registration with it; there is none from an engine that does not pack."""
    info.dsv41_offer = Offer.from_frame(msg[-1]) if len(msg) == OFFER_AT + 1 else None
    return info


# Frames of SGLang 0.5.23's registration without the tag in front: build_receiver_registration_message.
OFFER_AT = 24
