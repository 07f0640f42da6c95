"""The hooks into SGLang 0.5.23 that carry packed blocks: one row per change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.sglang_plugin.drift import Patch
from dsv41_serving.sglang_plugin.handoff.receiver import Receiver, read_offer
from dsv41_serving.sglang_plugin.handoff.sender import Sender
from dsv41_serving.sglang_plugin.handoff.staging import Side
from dsv41_serving.sglang_plugin.handoff.waterfall import PAGES_SIGNATURE, STATES_SIGNATURE

if TYPE_CHECKING:
    from dsv41_serving.sglang_plugin.handoff.waterfall import Waterfall
    from dsv41_serving.spec.model import Handoff

_NIXL = "sglang.srt.disaggregation.nixl.conn"
_COMMON = "sglang.srt.disaggregation.common.conn"


def make_hooks(table: Handoff, waterfall: Waterfall) -> tuple[Patch, ...]:
    """Return the hooks of both roles; those of the other role are never called in a process."""
    sender, receiver = Sender(Side(table), waterfall), Receiver(Side(table))
    return (
        Patch(
            target=f"{_NIXL}.NixlKVManager.send_kvcache",
            signature=PAGES_SIGNATURE,
            kind="around",
            hook=sender.send_pages,
            why="a page of a layer is a block of its own to NIXL, and a block costs 7.5 us between two H200s, whatever its size",
            effect="the pages of a chunk are gathered and go in one write, where the peer takes it",
        ),
        Patch(
            target=f"{_NIXL}.NixlKVManager.maybe_send_extra",
            signature=STATES_SIGNATURE,
            kind="around",
            hook=sender.send_states,
            why="so is every buffer of a request's states",
            effect="they go in one write",
        ),
        Patch(
            target=f"{_NIXL}.NixlKVManager._await_handles",
            signature="(self, handles, *, failure_seen)",
            kind="around",
            hook=sender.settle,
            why="decode has to scatter a block before it hears that the request is complete",
            effect="blocks are posted once they are packed, and decode is told of them before SGLang's word that all is written",
        ),
        Patch(
            target=f"{_NIXL}.NixlKVManager._add_remote_peer",
            signature="(self, decode_kv_args)",
            kind="after",
            hook=sender.add_peer,
            why="only a peer with the same pools can scatter a block",
            effect="a registration with a fitting offer makes the peer one that is sent blocks",
        ),
        Patch(
            target=f"{_NIXL}.NixlKVManager._handle_abort_notification",
            signature="(self, msg)",
            kind="around",
            hook=sender.credit,
            why="SGLang drops a control message it does not know by ending the thread that listens",
            effect="the credits of decode are taken out of the control messages",
        ),
        Patch(
            target=f"{_NIXL}.KVArgsRegisterInfo.from_zmq",
            signature="(msg)",
            kind="after",
            hook=read_offer,
            why="SGLang reads the frames it knows and leaves the rest",
            effect="the offer is kept with the registration",
        ),
        Patch(
            target=f"{_COMMON}.CommonKVReceiver._register_kv_args",
            signature="(self)",
            kind="around",
            hook=receiver.register,
            why="each prefill rank needs an area of its own, and the message is built without knowing for whom",
            effect="the address of prefill is known while the message is built",
        ),
        Patch(
            target=f"{_NIXL}.NixlKVManager.build_receiver_registration_message",
            signature="(self)",
            kind="around",
            hook=receiver.offer,
            why="prefill has to know where it may write",
            effect="the registration carries an offer",
        ),
        Patch(
            target=f"{_COMMON}.CommonKVManager.handle_chunk_ready",
            signature="(self, msg)",
            kind="around",
            hook=receiver.take,
            why="it is the first that decode's listening thread asks about a message",
            effect="blocks are scattered when they arrive",
        ),
    )
