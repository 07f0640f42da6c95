"""Where the time of a hand-off goes: hooks into SGLang 0.5.23 that read a clock and change nothing.

A stage is observed once for each request and rank, on the side where it passes. The chunks of a request are added up, so what
overlaps with the prefill of the next chunk is in the stages of prefill but not in the time a client waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang.srt.disaggregation.base.conn import KVPoll

from dsv41_serving.sglang_plugin.drift import Patch
from dsv41_serving.sglang_plugin.handoff import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAGES = {
    "prefill": {
        "bootstrap": "from the request's arrival in the queue to decode's answer that it has memory",
        "queue": "chunks waiting for the thread that sends to this decode engine",
        "launch": "copies of packed blocks started; on a CPU also done",
        "pack": "until the GPU has done them, where nothing else was left to do meanwhile",
        "prepare": "descriptors made and handed to NIXL",
        "wire": "from the last descriptor to NIXL's word that every write is done",
        "poll": "until the scheduler looks",
    },
    "decode": {
        "bootstrap": "until the prefill engine is known",
        "allocate": "until memory is allocated and prefill was told where it is",
        "receive": "from then until prefill's word that all is written; the whole prefill is in it",
        "notify": "that word on its way, by the clocks of both hosts",
        "launch": "copies of packed blocks into the pools started, of each message; on a CPU also done; within receive",
        "unpack": "until the GPU has done them; within receive",
        "poll": "until the scheduler looks",
        "admit": "until the request is in a batch",
    },
}
"""Role -> stage -> meaning, in the order they pass."""


@dataclass
class Transfer:
    """One hand-off on one side. Times are seconds of the clock of `Waterfall`."""

    mark: float
    """When the current stage began."""
    connected: bool = False
    queued: deque[float] = field(default_factory=deque)
    queue: float = 0.0
    launch: float = 0.0
    pack: float = 0.0
    prepare: float = 0.0
    wire: float = 0.0
    bytes: int = 0
    descriptors: int = 0
    paths: set[str] = field(default_factory=set)
    """That its KV and states took: `packed`, `stock`. Empty when no other than SGLang's own could be taken."""
    finished: bool = False

    @property
    def spent(self) -> float:
        """What the sending thread has spent on it."""
        return self.launch + self.pack + self.prepare + self.wire

    @property
    def path(self) -> str:
        """The one path it took, or `mixed`."""
        return "mixed" if len(self.paths) > 1 else next(iter(self.paths), "stock")


class Waterfall:
    """The hand-offs in progress of this process, by bootstrap room."""

    def __init__(
        self,
        observe: Callable[[str, float], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Observe stages with `observe(stage, seconds)`; without it in the engine's metrics."""
        self._observe = observe or (lambda stage, seconds: metrics.stage_seconds().labels(stage).observe(seconds))
        self._clock = clock
        self._transfers: dict[int, Transfer] = {}
        self._thread = threading.local()
        self._lock = threading.Lock()

    @property
    def current(self) -> Transfer:
        """The hand-off that this sending thread works on; one that nobody reads when there is none, or its request has ended."""
        found: Transfer | None = getattr(self._thread, "transfer", None)
        return found if found is not None else Transfer(self._clock())

    @property
    def room(self) -> int:
        """The bootstrap room that this sending thread works on. Raises AttributeError on any other thread."""
        found: int = self._thread.room
        return found

    def begin(self, _result: None, side: Any, *_args: Any, **_kwargs: Any) -> None:
        """A sender or receiver was made; the other side may have answered before."""
        transfer = self._transfers[side.bootstrap_room] = Transfer(self._clock())
        if side.kv_mgr.request_status.get(side.bootstrap_room) == KVPoll.WaitingForInput:
            self._connect(transfer)

    def enqueue(self, _manager: Any, bootstrap_room: int, *_args: Any, **_kwargs: Any) -> None:
        """A chunk is about to be put in the queue of a sending thread."""
        if transfer := self._transfers.get(bootstrap_room):
            transfer.queued.append(self._clock())

    def follow(self, _result: None, manager: Any, bootstrap_room: int, status: int) -> None:
        """The status of a room was set; what it is now decides, because a failed room stays failed."""
        transfer = self._transfers.get(bootstrap_room)
        if status == KVPoll.Transferring:
            self._thread.room, self._thread.transfer, self._thread.starts = bootstrap_room, transfer, []
        if transfer is None:
            return
        now = manager.request_status.get(bootstrap_room)
        if now == KVPoll.Failed:
            self._transfers.pop(bootstrap_room, None)
        elif status == KVPoll.WaitingForInput and not transfer.connected:
            self._connect(transfer)
        elif status == KVPoll.Transferring:
            if transfer.queued:
                transfer.queue += self._clock() - transfer.queued.popleft()
        elif now == KVPoll.Success:
            self._finish(transfer, manager)

    def allocated(self, _result: None, receiver: Any, *_args: Any, **_kwargs: Any) -> None:
        """Decode has told prefill where to write."""
        if transfer := self._transfers.get(receiver.bootstrap_room):
            self._pass(transfer, "allocate")

    def polled(self, status: int, side: Any, *_args: Any) -> int:
        """The scheduler has asked for the status of a sender or receiver."""
        if status == KVPoll.Success and (transfer := self._transfers.pop(side.bootstrap_room, None)):
            # The scheduler may see the status before the thread that set it comes to `follow`.
            self._finish(transfer, side.kv_mgr)
            self._pass(transfer, "poll")
            side.dsv41_handed_over = True
        return status

    def forget(self, _result: None, side: Any) -> None:
        """A sender or receiver was cleared, whatever became of it."""
        self._transfers.pop(side.bootstrap_room, None)

    def commit(self, _queue: Any, decode_req: Any) -> None:
        """A request goes to decode's waiting queue; the engine's own health checks were never handed over."""
        if getattr(decode_req.kv_receiver, "dsv41_handed_over", False):
            decode_req.req.dsv41_committed_at = self._clock()

    def admit(self, _result: None, batch: Any) -> None:
        """Requests whose KV has arrived are in a batch; one that was retracted comes again and is not counted again."""
        for request in batch.reqs:
            since = getattr(request, "dsv41_committed_at", None)
            if since is not None:
                self._observe("admit", self._clock() - since)
                request.dsv41_committed_at = None

    def start(self, *_args: Any, **_kwargs: Any) -> None:
        """Descriptors are about to be made, or waited for, in this thread."""
        starts = self._thread.__dict__.setdefault("starts", [])
        starts.append((self._clock(), self.current.spent))

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add what is done within to `stage` of the hand-off that this sending thread works on, and to no other."""
        transfer, since = self.current, self._clock()
        try:
            yield
        finally:
            setattr(transfer, stage, getattr(transfer, stage) + self._clock() - since)

    def pages_sent(self, handle: Any, manager: Any, _peer: str, pages: Any, *_args: Any, **_kwargs: Any) -> Any:
        """A write of KV pages was posted."""
        self._add("prepare")
        self.current.bytes += len(pages) * manager.kv_item_lens_sum
        return handle

    def states_sent(self, handles: Any, manager: Any, _peer: str, indices: Any, *_args: Any, **_kwargs: Any) -> Any:
        """States are sent while the sending thread iterates over `handles`."""
        lengths = manager.kv_args.state_item_lens or []
        size = sum(len(i) * sum(each) for i, each in zip(indices, lengths, strict=False) if i is not None)
        return self._time(handles, size)

    def aux_sent(self, handle: Any, manager: Any, *_args: Any, **_kwargs: Any) -> Any:
        """A write of a request's metadata was posted."""
        self._add("prepare")
        self.current.bytes += sum(manager.kv_args.aux_item_lens)
        return handle

    def awaited(self, outcome: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Writes have settled."""
        self._add("wire")
        return outcome

    def count_selected(self, handle: Any, _agent: Any, _operation: str, _side: Any, indices: Any, *_rest: Any) -> Any:
        """NIXL was given blocks of prepared lists."""
        self.current.descriptors += len(indices)
        return handle

    def count_listed(self, handle: Any, _agent: Any, _operation: str, descriptors: Any, *_rest: Any, **_kw: Any) -> Any:
        """NIXL was given a list of blocks."""
        self.current.descriptors += descriptors.descCount()
        return handle

    def stamp(self, frames: list[bytes], *_args: Any, **_kwargs: Any) -> list[bytes]:
        """Put the time of sending behind prefill's word to decode, where SGLang does not look."""
        return [*frames, f"{time.time():.6f}".encode()]

    def notified(self, parsed: Any, _manager: Any, msg: list[bytes]) -> Any:
        """Prefill's word has arrived; one without a time is from an engine without this plug-in."""
        if parsed is not None and len(msg) == _STAMPED_FRAMES and parsed[1] == KVPoll.Success:
            self._observe("notify", max(0.0, time.time() - float(msg[-1])))
        return parsed

    def _add(self, stage: str) -> None:
        """Add the time since `start` to `stage`, without what was counted elsewhere meanwhile."""
        since, spent = self._thread.starts.pop()
        transfer = self.current
        meanwhile = transfer.spent - spent
        setattr(transfer, stage, getattr(transfer, stage) + self._clock() - since - meanwhile)

    def _connect(self, transfer: Transfer) -> None:
        transfer.connected = True
        self._pass(transfer, "bootstrap")

    def _finish(self, transfer: Transfer, manager: Any) -> None:
        """All is written; once, on whichever thread is first."""
        with self._lock:
            if transfer.finished:
                return
            transfer.finished = True
            if manager.disaggregation_mode.value != "prefill":
                self._pass(transfer, "receive")
                return
            transfer.mark = self._clock()
            own = ("launch", "pack") if "packed" in transfer.paths else ()
            for stage in ("queue", *own, "prepare", "wire"):
                self._observe(stage, getattr(transfer, stage))
            metrics.transfer_bytes().observe(transfer.bytes)
            metrics.transfer_descriptors().observe(transfer.descriptors)
            metrics.transfers().labels(transfer.path).inc()

    def _pass(self, transfer: Transfer, stage: str) -> None:
        now = self._clock()
        self._observe(stage, now - transfer.mark)
        transfer.mark = now

    def _time(self, handles: Any, size: int) -> Iterator[Any]:
        self.current.bytes += size
        handles = iter(handles)
        while True:
            self.start()
            handle = next(handles, None)
            self._add("prepare")
            if handle is None:
                return
            yield handle


# Tag, room, status, rank, reason, time: see CommonKVManager._encode_kv_status_message.
_STAMPED_FRAMES = 6

PAGES_SIGNATURE = "(self, peer_name, prefill_kv_indices, dst_kv_ptrs, dst_kv_indices, dst_gpu_id, dst_mem_kind='VRAM')"
STATES_SIGNATURE = (
    "(self, peer_name, prefill_state_indices, dst_state_data_ptrs, dst_state_indices, dst_gpu_id, decode_tp_size, "
    "decode_tp_rank=0, dst_state_item_lens=None, dst_state_dim_per_tensor=None, dst_state_layer_ids=None)"
)
_MANAGER = "sglang.srt.disaggregation.common.conn.CommonKVManager"
_SENDER = "sglang.srt.disaggregation.common.conn.CommonKVSender"
_RECEIVER = "sglang.srt.disaggregation.common.conn.CommonKVReceiver"
_NIXL = "sglang.srt.disaggregation.nixl.conn.NixlKVManager"


def make_hooks(waterfall: Waterfall) -> tuple[Patch, ...]:
    """Return the table of hooks that feed `waterfall`; they stand outside of any other hook of the same target."""
    send, states = PAGES_SIGNATURE, STATES_SIGNATURE
    aux = "(self, peer_name, prefill_aux_index, dst_aux_ptrs, dst_aux_index)"
    enqueue = (
        "(self, bootstrap_room, kv_indices, index_slice, is_last_chunk, aux_index=None, state_indices=None, "
        "num_kv_tokens=None, *, wait_event=None, indices_event=None, trace_ctx=None)"
    )
    metadata = (
        "(self, kv_indices, aux_index=None, state_indices=None, decode_prefix_len=None, "
        "destination=<KVTransferDestination.DEVICE: 'device'>, device_kv_indices=None)"
    )
    selected = (
        "(self, operation, local_xfer_side, local_indices, remote_xfer_side, remote_indices, notif_msg=b'', "
        "backends=[], skip_desc_merge=False)"
    )
    listed = "(self, operation, local_descs, remote_descs, remote_agent, notif_msg=b'', backends=[])"
    sender = "(self, mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank=False)"
    prebuilt = "sglang.srt.disaggregation.decode_schedule_batch_mixin.ScheduleBatchDisaggregationDecodeMixin"
    rows: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
        (f"{_SENDER}.__init__", sender, "after", waterfall.begin),
        (f"{_SENDER}._poll_with_status", "(self, check_status)", "after", waterfall.polled),
        (f"{_SENDER}.clear", "(self)", "after", waterfall.forget),
        (f"{_RECEIVER}.__init__", "(self, mgr, bootstrap_addr, bootstrap_room=None)", "after", waterfall.begin),
        (f"{_RECEIVER}.send_metadata", metadata, "after", waterfall.allocated),
        (f"{_RECEIVER}._poll", "(self)", "after", waterfall.polled),
        (f"{_RECEIVER}.clear", "(self)", "after", waterfall.forget),
        (f"{_MANAGER}.update_status", "(self, bootstrap_room, status)", "after", waterfall.follow),
        (
            f"{_MANAGER}._encode_kv_status_message",
            "(self, *, bootstrap_room, status, failure_reason)",
            "after",
            waterfall.stamp,
        ),
        (f"{_MANAGER}.parse_kv_status_message", "(self, msg)", "after", waterfall.notified),
        (f"{_NIXL}.add_transfer_request", enqueue, "before", waterfall.enqueue),
        (f"{_NIXL}.send_kvcache", send, "before", waterfall.start),
        (f"{_NIXL}.send_kvcache", send, "after", waterfall.pages_sent),
        (f"{_NIXL}.maybe_send_extra", states, "after", waterfall.states_sent),
        (f"{_NIXL}.send_aux", aux, "before", waterfall.start),
        (f"{_NIXL}.send_aux", aux, "after", waterfall.aux_sent),
        (f"{_NIXL}._await_handles", "(self, handles, *, failure_seen)", "before", waterfall.start),
        (f"{_NIXL}._await_handles", "(self, handles, *, failure_seen)", "after", waterfall.awaited),
        ("nixl._api.nixl_agent.make_prepped_xfer", selected, "after", waterfall.count_selected),
        ("nixl._api.nixl_agent.initialize_xfer", listed, "after", waterfall.count_listed),
        (
            "sglang.srt.disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req",
            "(self, decode_req)",
            "before",
            waterfall.commit,
        ),
        (f"{prebuilt}.prepare_for_prebuilt", "(self)", "after", waterfall.admit),
    )
    why = "SGLang's transfer metric is one time, from the first chunk to the poll, the compute of later chunks included"
    effect = "the stages of a hand-off are metrics; nothing else changes"
    return tuple(
        Patch(target=target, signature=signature, kind=kind, hook=hook, why=why, effect=effect)
        for target, signature, kind, hook in rows
    )
