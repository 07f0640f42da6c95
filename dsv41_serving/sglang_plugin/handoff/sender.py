"""Prefill's side of the packed hand-off: blocks are gathered, written and announced; without a slot SGLang's own path is taken."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv41_serving.sglang_plugin.handoff import metrics
from dsv41_serving.sglang_plugin.handoff.pools import SPIN_S, Copy, UnpackableError, size_of
from dsv41_serving.sglang_plugin.handoff.ring import Ring
from dsv41_serving.sglang_plugin.handoff.staging import Side, logger
from dsv41_serving.sglang_plugin.handoff.wire import CREDIT, Arrival, Block, Credit, Offer, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsv41_serving.sglang_plugin.handoff.waterfall import Waterfall

SLOT_WAIT_S = 2.0
"""Longest wait for a slot; then SGLang's own path is faster than more waiting."""
LOST_AFTER_S = 30.0
"""A slot whose credit has not come for so long belongs to an engine that has gone."""


@dataclass
class Peer:
    """A decode rank that takes packed blocks, and the slots of its staging area."""

    offer: Offer
    ring: Ring
    device: int
    endpoint: tuple[str, int]


@dataclass(eq=False)
class Write:
    """A block under way. SGLang keeps it among its handles, and `Sender.settle` puts NIXL's in its place."""

    name: str
    peer: Peer
    source: int
    block: Block
    copy: Copy
    handle: Any
    posted: bool = False
    """NIXL has it: it was packed before."""
    over: bool = False
    """Its source slot is free, and it was announced or given up."""


class Sender:
    """The packing of one prefill rank. Registration and credits come on one thread, writes on SGLang's sending threads."""

    def __init__(self, side: Side, waterfall: Waterfall) -> None:
        """Send blocks of the size and number that `side` says."""
        self._side = side
        self._waterfall = waterfall
        self._peers: dict[str, Peer] = {}
        self._seen: set[str] = set()
        self._source = Ring(side.slots)
        self._thread = threading.local()
        self._lock = threading.Lock()

    @property
    def busy(self) -> int:
        """Slots in use, here and towards every peer."""
        return self._source.busy + sum(peer.ring.busy for peer in list(self._peers.values()))

    def add_peer(self, _result: None, manager: Any, info: Any) -> None:
        """A decode rank has registered; decide once how it is served."""
        name = info.agent_name
        if name in self._seen:
            return
        self._seen.add(name)
        self._drop_lost()
        reason, why = self._refusal(manager, info)
        if reason:
            metrics.fallbacks().labels(reason).inc()
            logger.warning("packed hand-off: not to %s:%s, %s", info.endpoint, info.dst_port, why)
            return
        offer: Offer = info.dsv41_offer
        self._peers[name] = Peer(offer, Ring(offer.slots), info.gpu_id, (info.endpoint, info.dst_port))
        logger.info(
            "packed hand-off: to %s:%s, %d slots of %d bytes",
            info.endpoint,
            info.dst_port,
            offer.slots,
            offer.slot_bytes,
        )

    def send_pages(  # noqa: PLR0917 - SGLang's signature
        self,
        original: Callable[..., Any],
        manager: Any,
        peer_name: str,
        prefill_kv_indices: Any,
        dst_kv_ptrs: Any,
        dst_kv_indices: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Write the KV pages of a chunk: as blocks of as many pages as a slot holds, what finds no slot on SGLang's path."""
        peer = self._peers.get(peer_name)
        at, handle = 0, None
        if peer is not None:
            # A page that fits into no slot is refused as it is.
            each = max(1, min(peer.offer.slot_bytes, self._side.slot_bytes) // self._side.groups[0].bytes_per_item)
            while at < len(prefill_kv_indices):
                if at:
                    self._flush(manager)
                pages = slice(at, at + each)
                parts = (prefill_kv_indices[pages],), (dst_kv_indices[pages],)
                handle = self._start(manager, peer_name, (0,), *parts)
                if handle is None:
                    break
                at += each
        if handle is not None:
            return handle
        self._waterfall.current.paths.add("stock")
        remainder = prefill_kv_indices[at:], dst_kv_ptrs, dst_kv_indices[at:]
        return original(manager, peer_name, *remainder, *rest, **options)

    def send_states(  # noqa: PLR0917 - SGLang's signature
        self,
        original: Callable[..., Any],
        manager: Any,
        peer_name: str,
        prefill_state_indices: Sequence[Any],
        dst_state_data_ptrs: Any,
        dst_state_indices: Sequence[Any],
        *rest: Any,
        **options: Any,
    ) -> Iterator[Any]:
        """Write the states of a request as one block, or on SGLang's path."""
        there = [number for number, items in enumerate(prefill_state_indices) if items is not None and len(items)]
        source = [prefill_state_indices[number] for number in there]
        target = [dst_state_indices[number] for number in there if number < len(dst_state_indices)]
        handle = None
        # Where the numbers of items differ, SGLang's path says so and fails the request.
        if peer_name in self._peers and [*map(len, source)] == [*map(len, target)]:
            if not there:
                return
            handle = self._start(manager, peer_name, [1 + number for number in there], source, target)
        if handle is not None:
            yield handle
            return
        self._waterfall.current.paths.add("stock")
        indices = prefill_state_indices, dst_state_data_ptrs, dst_state_indices
        yield from original(manager, peer_name, *indices, *rest, **options)

    def settle(
        self, original: Callable[..., tuple[bool, bool]], manager: Any, handles: Sequence[Any], *, failure_seen: bool
    ) -> tuple[bool, bool]:
        """Post the blocks among `handles` as they are packed, wait for all, and announce the blocks or give their peers up.

        Posted here and not when they were packed: what SGLang prepares in between hides the time that packing takes.
        """
        writes = [each for each in handles if isinstance(each, Write)]
        if not writes:
            return original(manager, handles, failure_seen=failure_seen)
        if not failure_seen:
            for write in writes:
                self._post(manager, write)
        # One that was never posted can harm nobody, and NIXL would not say how it fares.
        running = [
            each.handle if isinstance(each, Write) else each
            for each in handles
            if not isinstance(each, Write) or each.posted
        ]
        _look(manager, running)
        settled, failed = original(manager, running, failure_seen=failure_seen)
        self._finish(manager, [write for write in writes if not write.over], written=settled and not failed)
        return settled, failed

    def credit(self, original: Callable[..., bool], manager: Any, msg: list[bytes]) -> bool:
        """Take a credit from among decode's messages; the rest are SGLang's."""
        if not msg or msg[0] != CREDIT:
            return original(manager, msg)
        with suppress(ValueError, IndexError, TypeError):
            given = Credit.from_frames(msg)
            if given.peer in self._peers:
                for slot in given.slots:
                    self._peers[given.peer].ring.give_back(slot)
                self._show()
        return True

    def _refusal(self, manager: Any, info: Any) -> tuple[str, str]:
        """Return why `info` is not served packed, as a metric and as a person says it; empty when it is."""
        offer: Offer | None = getattr(info, "dsv41_offer", None)
        if offer is None:
            return "peer_lacks_it", "it made no offer"
        # Of an engine that splits requests several ranks send to one at decode, which has one area for all of them.
        split = (manager.attn_dp_size, manager.pp_size, manager.attn_cp_size, manager.dcp_size, manager.kv_shard_size)
        if set(split) != {1}:
            return "layout", "this engine splits requests, sequences or layers over ranks"
        if info.requires_dcp_relayout or set(info.dst_kv_mem_kinds) != {"VRAM"}:
            return "layout", "its KV is split over ranks or lies in host memory"
        try:
            if offer.layout != self._side.prepare(manager):
                return "layout", "its pools are laid out otherwise"
        except UnpackableError as error:
            return "layout", str(error)
        return "", ""

    def _start(
        self, manager: Any, peer_name: str, groups: Sequence[int], source: Sequence[Any], target: Sequence[Any]
    ) -> Write | None:
        """Begin to pack a block and make its write; None when there is no slot or too much for one."""
        peer = self._peers.get(peer_name)
        if peer is None:
            return None
        taken, wanted = (
            tuple(Part(group, np.asarray(each, dtype=np.int32)) for group, each in zip(groups, items, strict=True))
            for items in (source, target)
        )
        size = size_of(self._side.groups, taken)
        if size > min(peer.offer.slot_bytes, self._side.slot_bytes):
            self._fall_back("slot_too_small")
            return None
        slot = self._take(manager, peer.ring)
        if slot is None:
            self._drop_lost()
            self._fall_back("no_slot")
            return None
        try:
            here = self._take(manager, self._source)
        except BaseException:
            peer.ring.give_back(slot)
            raise
        if here is None:
            peer.ring.give_back(slot)
            self._fall_back("no_slot")
            return None
        try:
            with self._waterfall.time("launch"):
                copy = self._side.copier.pack(taken, self._side.block(0, here))
            address = peer.offer.address + slot * peer.offer.slot_bytes
            handle = self._side.make_write(
                manager, peer_name, slot=here, address=address, size=size, device=peer.device
            )
        except BaseException:
            self._source.give_back(here)
            self._drop(peer_name, "write_failed", "a block could not be packed")
            raise
        write = Write(peer_name, peer, here, Block(slot, wanted), copy, handle)
        self._held.append(write)
        self._show()
        self._waterfall.current.paths.add("packed")
        return write

    @property
    def _held(self) -> list[Write]:
        """The blocks of this thread that are not announced yet."""
        held: list[Write] = self._thread.__dict__.setdefault("held", [])
        return held

    def _take(self, manager: Any, ring: Ring) -> int | None:
        """Take a slot; before this thread waits for one, it lets go of those it holds."""
        slot = ring.take(0)
        if slot is None:
            self._flush(manager)
            slot = ring.take(SLOT_WAIT_S)
        return slot

    def _flush(self, manager: Any) -> None:
        """Settle the blocks that this thread holds. Raises RuntimeError when they could not be written."""
        if not self._held:
            return
        settled, failed = manager._await_handles(self._held[:], failure_seen=False)  # noqa: SLF001 - hooked: `settle`
        if failed or not settled:
            raise RuntimeError("NIXL could not write a packed block")

    def _post(self, manager: Any, write: Write) -> None:
        """Hand a packed block to NIXL, unless it was before."""
        if write.posted or write.over:
            return
        try:
            with self._waterfall.time("pack"):
                write.copy.wait()
            with self._waterfall.time("prepare"):
                manager._post_xfer(write.handle, "NIXL did not accept a packed block")  # noqa: SLF001 - SGLang's errors
        except BaseException:
            # What NIXL may have begun goes to a slot that is never used again, so it can harm nobody.
            self._end(write)
            self._drop(write.name, "write_failed", "a write could not be posted")
            raise
        write.posted = True

    def _finish(self, manager: Any, writes: Sequence[Write], *, written: bool) -> None:
        """Announce the blocks that were written to each peer; of the others only those that NIXL never had are forgiven."""
        for write in writes:
            self._end(write)
            if not write.posted:
                write.peer.ring.give_back(write.block.slot)
            elif not written:
                self._drop(write.name, "write_failed", "a write failed")
        if written:
            for name, group in groupby(writes, lambda write: write.name):
                own = list(group)
                peer, blocks = own[0].peer, tuple(write.block for write in own)
                arrival = Arrival(
                    self._waterfall.room, peer.offer.area, blocks, name, manager.local_ip, manager.rank_port
                )
                self._side.send(manager, peer.endpoint, arrival.to_frames())
        self._show()

    def _end(self, write: Write) -> None:
        write.over = True
        self._source.give_back(write.source)
        if write in self._held:
            self._held.remove(write)

    def _fall_back(self, reason: str) -> None:
        metrics.fallbacks().labels(reason).inc()

    def _drop(self, name: str, reason: str, why: str) -> None:
        peer = self._peers.pop(name, None)
        if peer is not None:
            self._show()
            self._fall_back(reason)
            logger.warning("packed hand-off: no more to %s:%s, %s", *peer.endpoint, why)

    def _show(self) -> None:
        with self._lock:
            metrics.slots_busy().set(self.busy)

    def _drop_lost(self) -> None:
        for name, peer in list(self._peers.items()):
            if peer.ring.oldest_s() > LOST_AFTER_S:
                self._drop(name, "slot_lost", "a slot did not come back")


def _look(manager: Any, handles: Sequence[Any]) -> None:
    """Look at `handles` for a short while without a pause; SGLang lets another thread run after every look.

    What a look says is for SGLang to judge, which looks again.
    """
    until = time.perf_counter() + SPIN_S
    with suppress(Exception):
        for handle in handles:
            while manager.agent.check_xfer_state(handle) == "PROC" and time.perf_counter() < until:
                pass
