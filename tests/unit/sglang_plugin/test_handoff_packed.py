"""Blocks from prefill's pools to decode's, over a NIXL that is a copy in memory, and every way in which one is not sent."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dsv41_serving.sglang_plugin.handoff import metrics
from dsv41_serving.sglang_plugin.handoff.ring import Ring
from dsv41_serving.sglang_plugin.handoff.wire import ARRIVAL, CREDIT, Arrival, Block, Credit, Offer, Part
from dsv41_serving.spec.model import Handoff

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROOM = 11
KV, WINDOW, RING = (64, 32, 32), (48, 48), (16,)
ITEMS = 40
SLOT = 2**20


class FakeAgent:
    """A NIXL agent whose writes are copies in this process; `broken` makes them fail, `refuses` their posting."""

    name = "decode-agent"

    def __init__(self) -> None:
        self.registered: list[tuple[int, int]] = []
        self.writes: list[int] = []
        self.broken = self.refuses = False

    def register_memory(self, places: list[tuple[int, int, int, str]], _kind: str) -> bool:
        self.registered += [(address, size) for address, size, _, _ in places]
        return True

    def get_xfer_descs(self, places: Any, _kind: str) -> Any:
        return places

    def initialize_xfer(self, _operation: str, source: Any, target: Any, _peer: str) -> Any:
        ((here, size, _),), ((there, length, _),) = source, target
        assert size == length
        self.writes.append(size)
        return types.SimpleNamespace(move=lambda: ctypes.memmove(there, here, size), posted=False)

    def check_xfer_state(self, handle: Any) -> str:
        assert handle.posted, "NIXL raises for one that was never posted"
        return "ERR" if self.broken else "DONE"


class Engine:
    """One rank: pools of random bytes, and of SGLang's manager what the hooks touch."""

    def __init__(self, seed: int, *, item_bytes: tuple[int, ...] = KV) -> None:
        from sglang.srt.disaggregation.base.conn import StateType

        generator = torch.Generator().manual_seed(seed)
        self.groups = [
            [torch.randint(0, 256, (ITEMS, size), generator=generator, dtype=torch.uint8) for size in sizes]
            for sizes in (item_bytes, WINDOW, RING)
        ]
        kv, *states = self.groups
        self.agent = FakeAgent()
        self.kv_args = types.SimpleNamespace(
            kv_data_ptrs=[pool.data_ptr() for pool in kv],
            kv_data_lens=[pool.nbytes for pool in kv],
            kv_item_lens=[pool.shape[1] for pool in kv],
            kv_data_mem_kinds=["VRAM"] * len(kv),
            kv_layer_ids=[2, 8, 2],
            kv_layout="v4",
            kv_cache_dtype_str="fp8",
            page_size=256,
            state_types=[StateType.SWA, StateType.DSV4_REQUEST_STATE],
            state_data_ptrs=[[pool.data_ptr() for pool in pools] for pools in states],
            state_data_lens=[[pool.nbytes for pool in pools] for pools in states],
            state_item_lens=[[pool.shape[1] for pool in pools] for pools in states],
            state_layer_ids=[[0, 1], [2]],
            gpu_id=0,
        )
        self.attn_tp_size = self.pp_size = self.attn_cp_size = self.dcp_size = self.kv_shard_size = 1
        self.attn_dp_size = 1
        self.local_ip, self.rank_port = "127.0.0.1", 1000 + seed
        self.request_status: dict[int, int] = {ROOM: 3}
        self.failures: dict[int, str] = {}
        self.outbox: list[list[bytes]] = []
        self.settle: Callable[..., tuple[bool, bool]] | None = None

    def _send_multipart_locked(self, _endpoint: str, frames: list[bytes], *, is_ipv6: bool) -> None:
        assert not is_ipv6
        self.outbox.append(frames)

    def _post_xfer(self, handle: Any, message: str) -> None:
        if self.agent.refuses:
            raise RuntimeError(message)
        handle.posted = True
        if not self.agent.broken:
            handle.move()

    def _await_handles(self, handles: Sequence[Any], *, failure_seen: bool) -> tuple[bool, bool]:
        assert self.settle is not None
        return self.settle(Engine.await_all, self, handles, failure_seen=failure_seen)

    def await_all(self, handles: Sequence[Any], *, failure_seen: bool) -> tuple[bool, bool]:
        states = [self.agent.check_xfer_state(handle) for handle in handles]
        return True, failure_seen or "ERR" in states

    def record_failure(self, room: int, reason: str) -> None:
        self.failures[room] = reason

    def update_status(self, room: int, status: int) -> None:
        self.request_status[room] = status


class Pair:
    """A prefill and a decode rank that have registered with each other."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, decode: Engine | None = None, slots: int = 2, offers: bool = True
    ) -> None:
        from dsv41_serving.sglang_plugin.handoff import staging
        from dsv41_serving.sglang_plugin.handoff.receiver import Receiver, read_offer
        from dsv41_serving.sglang_plugin.handoff.sender import Sender
        from dsv41_serving.sglang_plugin.handoff.waterfall import Waterfall

        monkeypatch.setattr(staging, "device_of", lambda _manager: torch.device("cpu"))
        monkeypatch.setattr("dsv41_serving.sglang_plugin.handoff.sender.SLOT_WAIT_S", 0.01)
        table = Handoff(packed=True, slots=slots, slot_mib=1)
        self.prefill, self.decode = Engine(1), decode or Engine(2)
        self.waterfall = Waterfall(lambda *_: None)
        self.sender, self.receiver = Sender(staging.Side(table), self.waterfall), Receiver(staging.Side(table))
        self.prefill.settle = self.sender.settle
        self.stock: list[tuple[list[int], list[int]]] = []
        room = types.SimpleNamespace(bootstrap_addr="prefill:1", bootstrap_infos=[{}])
        frames = self.receiver.register(lambda _: self.receiver.offer(lambda _: [b""] * 25, self.decode), room)
        info = types.SimpleNamespace(
            agent_name=FakeAgent.name,
            endpoint="127.0.0.1",
            dst_port=9,
            gpu_id=0,
            requires_dcp_relayout=False,
            dst_kv_mem_kinds=["VRAM"] * 3,
        )
        self.info = read_offer(info, type(info), frames[1:] if offers else frames[1:-1])
        self.sender.add_peer(None, self.prefill, self.info)
        self.waterfall.follow(None, self.prefill, ROOM, 3)

    def send(self, source: list[int], target: list[int], *, settle: bool = True) -> Any:
        def original(_manager: Any, _peer: str, pages: Any, _pointers: Any, there: Any, *_rest: Any) -> str:
            self.stock.append((list(pages), list(there)))
            return "stock"

        pages = np.array(source, dtype=np.int32), np.array(target, dtype=np.int32)
        handle = self.sender.send_pages(original, self.prefill, FakeAgent.name, pages[0], [], pages[1], 0)
        if settle and handle != "stock":
            self.prefill._await_handles([handle], failure_seen=False)
        return handle

    def deliver(self) -> None:
        """Carry every message that waits, in both directions, until there is none."""
        while self.prefill.outbox or self.decode.outbox:
            while self.prefill.outbox:
                assert self.receiver.take(pytest.fail, self.decode, self.prefill.outbox.pop(0))
            while self.decode.outbox:
                assert self.sender.credit(pytest.fail, self.prefill, self.decode.outbox.pop(0))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pair]:
    return lambda **options: Pair(monkeypatch, **options)


@pytest.fixture
def counted() -> Callable[[str], float]:
    """How often each reason was counted since the test began."""

    def value(reason: str) -> float:
        return metrics.fallbacks().labels(reason)._value.get()

    reasons = ("peer_lacks_it", "layout", "write_failed", "slot_lost", "no_slot", "slot_too_small")
    before = {reason: value(reason) for reason in reasons}
    return lambda reason: value(reason) - before[reason]


def pool_bytes(engine: Engine) -> list[torch.Tensor]:
    return [pool.clone() for group in engine.groups for pool in group]


def test_pages_arrive_where_decode_wants_them_and_nowhere_else(make: Callable[..., Pair]) -> None:
    pair = make()
    before = pool_bytes(pair.decode)
    source, target = [3, 1, 30], [7, 39, 0]
    pair.send(source, target)
    pair.deliver()
    for number, (ours, theirs) in enumerate(zip(pair.decode.groups[0], pair.prefill.groups[0], strict=True)):
        expected = before[number].clone()
        expected[target] = theirs[source]
        assert torch.equal(ours, expected)
    assert [torch.equal(pool, old) for pool, old in zip(pool_bytes(pair.decode)[3:], before[3:], strict=True)] == [
        True
    ] * 3
    assert pair.prefill.agent.writes == [3 * sum(KV)]
    assert pair.waterfall.room == ROOM
    assert pair.sender.busy == 0


@pytest.mark.parametrize("sizes", [(64, 24), (64, 12)])
def test_copies_on_a_cpu_take_items_of_any_size(sizes: tuple[int, ...]) -> None:
    """Whole words, and items that are none."""
    from dsv41_serving.sglang_plugin.handoff.pools import Group, HostCopier

    pools = [torch.randint(0, 256, (9, size), dtype=torch.uint8) for size in sizes]
    copier = HostCopier([Group(tuple(pool.data_ptr() for pool in pools), sizes, 9)])
    block, before = torch.zeros(3 * sum(sizes) + 5, dtype=torch.uint8), [pool.clone() for pool in pools]
    copier.pack((Part(0, np.array([8, 0, 4], dtype=np.int32)),), block)
    assert torch.equal(block[:-5], torch.cat([pool[[8, 0, 4]].flatten() for pool in pools]))
    copier.unpack((Part(0, np.array([1, 2, 3], dtype=np.int32)),), block)
    for pool, old in zip(pools, before, strict=True):
        assert torch.equal(pool[[1, 2, 3]], old[[8, 0, 4]])
        assert torch.equal(pool[[0, *range(4, 9)]], old[[0, *range(4, 9)]])


def test_states_of_two_kinds_are_one_write(make: Callable[..., Pair]) -> None:
    """A window of two pages and one ring; an empty component is left out."""
    pair = make()
    states = [np.array([4, 5]), np.array([9])]
    there = [np.array([1, 0]), np.array([2])]
    (handle,) = pair.sender.send_states(pytest.fail, pair.prefill, FakeAgent.name, states, [], there)
    pair.prefill._await_handles([handle], failure_seen=False)
    pair.deliver()
    _, window, ring = pair.decode.groups
    for ours, theirs in zip(window, pair.prefill.groups[1], strict=True):
        assert torch.equal(ours[[1, 0]], theirs[[4, 5]])
    assert torch.equal(ring[0][2], pair.prefill.groups[2][0][9])
    assert pair.prefill.agent.writes == [2 * sum(WINDOW) + sum(RING)]
    assert list(pair.sender.send_states(pytest.fail, pair.prefill, FakeAgent.name, [None, []], [], [[], []])) == []
    assert pair.sender.busy == 0


def test_a_chunk_longer_than_a_slot_goes_in_pieces_and_what_finds_no_slot_on_sglangs_path(
    make: Callable[..., Pair], counted: Callable[[str], float]
) -> None:
    """Two slots of 8,192 pages; decode says nothing meanwhile, so the third piece finds none."""
    pair = make()
    pages = np.zeros(2 * (SLOT // sum(KV)) + 5, dtype=np.int32)
    handle = pair.send(list(pages), list(pages))
    assert handle == "stock"
    assert pair.prefill.agent.writes == [SLOT // sum(KV) * sum(KV)] * 2
    assert [len(source) for source, _ in pair.stock] == [5]
    assert counted("no_slot") == 1
    assert pair.sender.busy == 2
    pair.deliver()
    assert pair.sender.busy == 0


def test_an_engine_that_splits_requests_over_ranks_sends_on_sglangs_path(
    make: Callable[..., Pair], counted: Callable[[str], float]
) -> None:
    """Its ranks would share one area at decode and write over each other's blocks."""
    pair = make()
    pair.prefill.attn_dp_size = 4
    pair.info.agent_name = "another"
    pair.sender.add_peer(None, pair.prefill, pair.info)
    assert counted("layout") == 1
    pages = np.array([3], dtype=np.int32)
    assert pair.sender.send_pages(lambda *_: "stock", pair.prefill, "another", pages, [], pages, 0) == "stock"


@pytest.mark.parametrize("prefills", [1, 3])
def test_staging_takes_what_capacity_counts(make: Callable[..., Pair], prefills: int) -> None:
    """One area at prefill whatever the peers; at decode one for each prefill engine, once however often it registers."""
    pair = make(slots=3)
    for number in [*range(prefills), *range(prefills)]:
        room = types.SimpleNamespace(bootstrap_addr=f"prefill:{1 + number}", bootstrap_infos=[{}])
        pair.receiver.register(lambda _: pair.receiver.offer(lambda _: [b""] * 25, pair.decode), room)
    for side, role in ((pair.sender._side, "prefill"), (pair.receiver._side, "decode")):
        allocated = sum(area.nbytes for area in side._areas)
        assert allocated == Handoff(packed=True, slots=3, slot_mib=1).staging_bytes(role, prefills)
        assert allocated == (prefills if role == "decode" else 1) * 3 * 2**20


def test_no_more_areas_than_capacity_counts(make: Callable[..., Pair], counted: Callable[[str], float]) -> None:
    pair = make()
    for number in range(10):
        room = types.SimpleNamespace(bootstrap_addr=f"prefill:{1 + number}", bootstrap_infos=[{}])
        pair.receiver.register(lambda _: pair.receiver.offer(lambda _: [b""] * 25, pair.decode), room)
    table = Handoff(packed=True, slots=2, slot_mib=1)
    assert sum(area.nbytes for area in pair.receiver._side._areas) == table.staging_bytes("decode", 10) == 8 * 2 * 2**20
    assert counted("layout") == 2


def test_a_cancelled_request_is_not_written_to_and_gives_its_slot_back(make: Callable[..., Pair]) -> None:
    for status in (0, None):
        pair = make()
        before = pool_bytes(pair.decode)
        pair.send([3], [7])
        pair.decode.request_status = {} if status is None else {ROOM: status}
        pair.deliver()
        assert all(torch.equal(ours, old) for ours, old in zip(pool_bytes(pair.decode), before, strict=True))
        assert pair.sender.busy == 0


def test_a_write_that_fails_announces_nothing_and_ends_packing_to_the_peer(
    make: Callable[..., Pair], counted: Callable[[str], float]
) -> None:
    pair = make()
    pair.prefill.agent.broken = True
    pair.send([3], [7])
    assert pair.prefill.outbox == []
    assert pair.sender.busy == 0
    assert counted("write_failed") == 1
    assert pair.send([3], [7]) == "stock"


def test_a_block_that_cannot_be_scattered_fails_its_request(make: Callable[..., Pair]) -> None:
    """An item beyond the pool: nothing is written, the request ends in failure, the thread goes on and the slot is free."""
    pair = make()
    pair.send([3], [ITEMS])
    pair.deliver()
    assert pair.decode.request_status[ROOM] == 0
    assert "group 0 has 40 items, not 40" in pair.decode.failures[ROOM]
    assert pair.sender.busy == 0


def test_pages_and_states_of_a_chunk_are_settled_and_announced_together(make: Callable[..., Pair]) -> None:
    """Nothing is posted before; then two writes, one message there and one back."""
    pair = make()
    pages = pair.send([3], [7], settle=False)
    (states,) = pair.sender.send_states(pytest.fail, pair.prefill, FakeAgent.name, [[4], [9]], [], [[1], [2]])
    assert (pages.posted, states.posted, pair.sender.busy) == (False, False, 4)
    assert pair.prefill._await_handles([pages, states], failure_seen=False) == (True, False)
    (arrival,) = pair.prefill.outbox
    assert len(Arrival.from_frames(arrival).blocks) == 2
    pair.deliver()
    assert all(
        torch.equal(ours[7], theirs[3])
        for ours, theirs in zip(*(e.groups[0] for e in (pair.decode, pair.prefill)), strict=True)
    )
    assert torch.equal(pair.decode.groups[2][0][2], pair.prefill.groups[2][0][9])
    assert pair.sender.busy == 0


def test_with_one_slot_the_states_wait_for_the_pages_before_them(
    make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot that the pages hold comes back once they are written and announced, so that is done first."""
    pair = make(slots=1)
    monkeypatch.setattr(
        pair.prefill,
        "_send_multipart_locked",
        lambda _endpoint, frames, **_options: (pair.receiver.take(pytest.fail, pair.decode, frames), pair.deliver()),
    )
    pages = pair.send([3], [7], settle=False)
    (states,) = pair.sender.send_states(pytest.fail, pair.prefill, FakeAgent.name, [[4], [9]], [], [[1], [2]])
    assert (pages.over, states.over) == (True, False)
    assert pair.prefill._await_handles([pages, states], failure_seen=False) == (True, False)
    assert torch.equal(pair.decode.groups[2][0][2], pair.prefill.groups[2][0][9])
    assert pair.sender.busy == 0


def test_a_block_that_nixl_refuses_ends_packing_to_the_peer_and_leaves_no_slot_taken(
    make: Callable[..., Pair], counted: Callable[[str], float]
) -> None:
    """SGLang settles the same handles again after the error; neither the refused one nor the one behind it is asked about."""
    pair = make()
    pages = pair.send([3], [7], settle=False)
    (states,) = pair.sender.send_states(pytest.fail, pair.prefill, FakeAgent.name, [[4], [9]], [], [[1], [2]])
    pair.prefill.agent.refuses = True
    with pytest.raises(RuntimeError, match="did not accept"):
        pair.prefill._await_handles([pages, states], failure_seen=False)
    assert pair.prefill._await_handles([pages, states], failure_seen=True) == (True, True)
    assert pair.prefill.outbox == []
    assert (pair.sender.busy, counted("write_failed")) == (0, 1)
    assert pair.send([3], [7]) == "stock"


def test_a_block_that_another_fault_keeps_from_being_posted_gives_its_slots_back(
    make: Callable[..., Pair], counted: Callable[[str], float]
) -> None:
    """Nothing of it was written, so the peer is still served packed."""
    pair = make(slots=1)
    pages = pair.send([3], [7], settle=False)
    assert pair.prefill._await_handles([pages], failure_seen=True) == (True, True)
    assert (pages.posted, pair.prefill.outbox, pair.sender.busy, counted("write_failed")) == (False, [], 0, 0)
    assert pair.send([3], [7]) != "stock"


def test_a_copy_is_waited_for_before_its_block_is_posted(make: Callable[..., Pair]) -> None:
    """The copies of a GPU are under way when they have been started."""
    pair = make()
    order: list[str] = []
    pages = pair.send([3], [7], settle=False)
    pages.copy = types.SimpleNamespace(wait=lambda: order.append(f"packed, posted {pages.handle.posted}"))
    pair.prefill._await_handles([pages], failure_seen=False)
    unpack = pair.receiver._side.copier.unpack

    def start(parts: Any, block: torch.Tensor) -> Any:
        unpack(parts, block)
        return types.SimpleNamespace(wait=lambda: order.append(f"unpacked, credits {len(pair.decode.outbox)}"))

    pair.receiver._side.copier.unpack = start  # type: ignore[method-assign]
    pair.deliver()
    assert order == ["packed, posted False", "unpacked, credits 0"]


def test_numbers_of_every_part_begin_where_triton_expects_them() -> None:
    from dsv41_serving.sglang_plugin.handoff.pools import line_up

    sizes = [3, 4, 0, 5]
    numbers, starts = line_up([Part(0, np.arange(10, 10 + size, dtype=np.int32)) for size in sizes])
    assert (numbers.dtype, starts) == (np.int32, [0, 4, 8, 8])
    for start, size in zip(starts, sizes, strict=True):
        assert numbers[start : start + size].tolist() == list(range(10, 10 + size))


@pytest.mark.parametrize("why", ["peer_lacks_it", "layout"])
def test_a_peer_that_cannot_is_served_on_sglangs_path(
    make: Callable[..., Pair], counted: Callable[[str], float], why: str
) -> None:
    """No offer, or pools of another layout; said once, however often it registers."""
    pair = make(offers=False) if why == "peer_lacks_it" else make(decode=Engine(2, item_bytes=(64, 32, 48)))
    pair.sender.add_peer(None, pair.prefill, pair.info)
    assert pair.send([3], [7]) == "stock"
    assert pair.stock == [([3], [7])]
    assert counted(why) == 1
    assert pair.waterfall.current.path == "stock"


def test_slots_of_an_engine_that_has_gone_are_given_up(
    make: Callable[..., Pair], counted: Callable[[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its credits never come; the next that registers, or the next that wants a slot, notices."""
    pair = make(slots=1)
    pair.send([3], [7])
    monkeypatch.setattr("dsv41_serving.sglang_plugin.handoff.sender.LOST_AFTER_S", 0.0)
    assert pair.send([3], [7]) == "stock"
    assert counted("slot_lost") == 1
    assert pair.sender.busy == 0


def test_prefill_that_starts_again_gets_the_same_area_and_the_ninth_none(make: Callable[..., Pair]) -> None:
    pair = make()

    def offer(address: str, targets: int = 1) -> Offer | None:
        room = types.SimpleNamespace(bootstrap_addr=address, bootstrap_infos=[{}] * targets)
        frames = pair.receiver.register(lambda _: pair.receiver.offer(lambda _: [b""] * 25, pair.decode), room)
        return Offer.from_frame(frames[-1])

    areas = [offer(f"prefill:{number}") for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 1)]
    assert [each.area if each else None for each in areas] == [0, 1, 2, 3, 4, 5, 6, 7, None, 0]
    assert areas[0] == areas[-1]
    assert offer("prefill:1", targets=2) is None
    assert len({each.address for each in areas if each}) == len(pair.decode.agent.registered) == 8


def test_pools_that_cannot_be_packed_are_not_offered(make: Callable[..., Pair]) -> None:
    """KV in host memory, and a state whose items are segments of a ring."""
    from sglang.srt.disaggregation.base.conn import StateType

    for change in (
        {"kv_data_mem_kinds": ["VRAM", "DRAM", "VRAM"]},
        {"state_types": [StateType.DSA_TAIL, StateType.SWA]},
    ):
        decode = Engine(2)
        vars(decode.kv_args).update(change)
        assert make(decode=decode).info.dsv41_offer is None


def test_sglangs_own_messages_pass(make: Callable[..., Pair]) -> None:
    pair = make()
    assert pair.receiver.take(lambda _manager, msg: msg, pair.decode, [b"CHUNK_READY"]) == [b"CHUNK_READY"]
    assert pair.sender.credit(lambda _manager, msg: msg, pair.prefill, [b"ABORT"]) == [b"ABORT"]
    for head in (b"{", b"5", b'[1, 0, [[0, [0]]], "agent", "::1", 5]'):
        assert pair.receiver.take(pytest.fail, pair.decode, [ARRIVAL, head])
    assert pair.sender.credit(pytest.fail, pair.prefill, [CREDIT, b"x", b"no number"])
    assert pair.sender.credit(pytest.fail, pair.prefill, [CREDIT, b"x", b"5"])


def test_messages_read_as_they_were_written() -> None:
    parts = (Part(0, np.array([5, 6], dtype=np.int32)), Part(2, np.array([], dtype=np.int32)))
    blocks = Block(3, parts), Block(0, parts[:1])
    read = Arrival.from_frames(Arrival(2**63 - 1, 1, blocks, "agent", "::1", 5).to_frames())
    assert (read.room, read.area, read.peer, read.host, read.port) == (2**63 - 1, 1, "agent", "::1", 5)
    assert [(block.slot, [(part.group, part.items.tolist()) for part in block.parts]) for block in read.blocks] == [
        (3, [(0, [5, 6]), (2, [])]),
        (0, [(0, [5, 6])]),
    ]
    assert Credit.from_frames(Credit("agent", (3, 0)).to_frames()) == Credit("agent", (3, 0))
    offer = Offer(1, 2**47, 4, SLOT, "layout")
    assert Offer.from_frame(offer.to_frame()) == offer
    assert Offer.from_frame(offer.to_frame().replace(b'"version": 2', b'"version": 1')) is None
    assert Offer.from_frame(b"\x00\x01") is None


def test_a_ring_hands_out_every_slot_once() -> None:
    now = [0.0]
    ring = Ring(2, lambda: now[0])
    assert [ring.take(0), ring.take(0), ring.take(0)] == [0, 1, None]
    now[0] = 3.0
    assert ring.oldest_s() == 3.0
    ring.give_back(1)
    ring.give_back(1)
    assert (ring.busy, ring.take(0), ring.take(0)) == (1, 1, None)
    ring.give_back(0)
    ring.give_back(1)
    assert (ring.busy, ring.oldest_s()) == (0, 0.0)
