"""The stages of a hand-off, each from the event that begins it to the one that ends it."""

import types

import pytest

from dsv41_serving.sglang_plugin.handoff import metrics

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ROOM = 7


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Followed:
    """A waterfall, what it observed, and an engine's side that does what SGLang does."""

    def __init__(self, role: str) -> None:
        from dsv41_serving.sglang_plugin.handoff.waterfall import Waterfall

        self.clock = Clock()
        self.seen: list[tuple[str, float]] = []
        self.waterfall = Waterfall(lambda stage, seconds: self.seen.append((stage, round(seconds, 6))), self.clock)
        kv_args = types.SimpleNamespace(state_item_lens=[[100, 50], [8]], aux_item_lens=[64, 64])
        self.manager = types.SimpleNamespace(
            request_status={},
            disaggregation_mode=types.SimpleNamespace(value=role),
            kv_item_lens_sum=1000,
            kv_args=kv_args,
        )
        self.side = types.SimpleNamespace(kv_mgr=self.manager, bootstrap_room=ROOM)

    def begin(self) -> None:
        self.waterfall.begin(None, self.side, self.manager, "address", ROOM)

    def set(self, status: int) -> None:
        self.manager.request_status[ROOM] = status
        self.waterfall.follow(None, self.manager, ROOM, status)


@pytest.fixture
def statuses() -> type:
    from sglang.srt.disaggregation.base.conn import KVPoll

    return KVPoll


def count(metric: object, sample: str) -> float:
    return next(s.value for family in metric.collect() for s in family.samples if s.name == sample)


def test_prefill_adds_up_two_chunks(statuses: type) -> None:
    """Bootstrap 2 s, queue 1 + 1 s, preparation 0.25 + 0.5 + 0.125 s, wire 3 + 4 s, poll 0.5 s; 3 pages, 2 states, metadata."""
    run = Followed("prefill")
    before = count(metrics.transfer_bytes(), "dsv41_handoff_bytes_sum")
    blocks = count(metrics.transfer_descriptors(), "dsv41_handoff_descriptors_sum")
    run.begin()
    run.clock.now = 2.0
    run.set(statuses.WaitingForInput)
    for pages, preparing, wire in (([1, 2], 0.25, 3.0), ([3], 0.5, 4.0)):
        run.waterfall.enqueue(run.manager, ROOM)
        run.clock.now += 1.0
        run.set(statuses.Transferring)
        run.waterfall.start(run.manager, "peer")
        run.clock.now += preparing
        run.waterfall.count_selected("handle", None, "WRITE", None, [0] * (4 * len(pages)))
        run.waterfall.pages_sent("handle", run.manager, "peer", pages)
        run.waterfall.start(run.manager, [])
        run.clock.now += wire
        assert run.waterfall.awaited((True, False), run.manager, []) == (True, False)

    def states() -> object:
        run.clock.now += 0.125
        yield "state"

    assert list(run.waterfall.states_sent(states(), run.manager, "peer", [[5], [6]])) == ["state"]
    run.waterfall.start(run.manager, "peer")
    run.waterfall.aux_sent("aux", run.manager, "peer")
    run.set(statuses.Success)
    run.clock.now += 0.5
    assert run.waterfall.polled(statuses.Success, run.side, None) == statuses.Success
    assert run.waterfall.polled(statuses.Success, run.side, None) == statuses.Success
    assert run.seen == [("bootstrap", 2.0), ("queue", 2.0), ("prepare", 0.875), ("wire", 7.0), ("poll", 0.5)]
    assert count(metrics.transfer_bytes(), "dsv41_handoff_bytes_sum") - before == 3 * 1000 + 150 + 8 + 128
    assert count(metrics.transfer_descriptors(), "dsv41_handoff_descriptors_sum") - blocks == 12


def test_waiting_within_a_preparation_is_wire(statuses: type) -> None:
    """A chunk of several blocks waits for one before it posts the next."""
    run = Followed("prefill")
    run.begin()
    run.set(statuses.WaitingForInput)
    run.set(statuses.Transferring)
    run.waterfall.start()
    run.clock.now = 1.0
    run.waterfall.start()
    run.clock.now = 6.0
    run.waterfall.awaited((True, False))
    run.clock.now = 8.0
    run.waterfall.pages_sent("handle", run.manager, "peer", [1])
    assert (run.waterfall.current.prepare, run.waterfall.current.wire) == (3.0, 5.0)


def test_packing_is_counted_apart_from_what_it_is_part_of(statuses: type) -> None:
    """2 s of starting a copy within a preparation of 5 s; 3 s of waiting for it and 0.5 s of posting before 4 s of wire."""
    run = Followed("prefill")
    run.begin()
    run.set(statuses.WaitingForInput)
    run.waterfall.enqueue(run.manager, ROOM)
    run.set(statuses.Transferring)
    run.waterfall.start()
    run.clock.now = 1.0
    with run.waterfall.time("launch"):
        run.clock.now = 3.0
    run.clock.now = 5.0
    run.waterfall.current.paths.add("packed")
    run.waterfall.pages_sent("handle", run.manager, "peer", [1])
    run.waterfall.start()
    with run.waterfall.time("pack"):
        run.clock.now = 8.0
    with run.waterfall.time("prepare"):
        run.clock.now = 8.5
    run.clock.now = 12.5
    run.waterfall.awaited((True, False))
    run.set(statuses.Success)
    stages = [("bootstrap", 0.0), ("queue", 0.0), ("launch", 2.0), ("pack", 3.0), ("prepare", 3.5), ("wire", 4.0)]
    assert run.seen == stages


def test_decode_from_receiver_to_batch(statuses: type) -> None:
    """Bootstrap 1 s, allocation 2 s, receipt 4 s, poll 0.5 s, admission 8 s; a retracted request is not admitted twice."""
    run = Followed("decode")
    run.begin()
    run.clock.now = 1.0
    run.set(statuses.WaitingForInput)
    run.clock.now = 3.0
    run.waterfall.allocated(None, run.side)
    run.clock.now = 7.0
    run.set(statuses.Success)
    run.clock.now = 7.5
    run.waterfall.polled(statuses.Success, run.side)
    request = types.SimpleNamespace()
    run.waterfall.commit(None, types.SimpleNamespace(req=request, kv_receiver=run.side))
    run.clock.now = 15.5
    for _ in range(2):
        run.waterfall.admit(None, types.SimpleNamespace(reqs=[request]))
    health_check = types.SimpleNamespace(req=types.SimpleNamespace(), kv_receiver=types.SimpleNamespace())
    run.waterfall.commit(None, health_check)
    run.waterfall.admit(None, types.SimpleNamespace(reqs=[health_check.req]))
    assert run.seen == [("bootstrap", 1.0), ("allocate", 2.0), ("receive", 4.0), ("poll", 0.5), ("admit", 8.0)]


@pytest.mark.parametrize("ends", ["failed", "cleared"])
def test_a_hand_off_that_ends_early_leaves_nothing(statuses: type, ends: str) -> None:
    run = Followed("prefill")
    run.begin()
    if ends == "failed":
        run.set(statuses.Failed)
    else:
        run.waterfall.forget(None, run.side)
    run.set(statuses.Success)
    run.waterfall.polled(statuses.Success, run.side, None)
    assert run.seen == []
    assert run.waterfall._transfers == {}


def test_an_answer_before_the_request_is_no_waiting(statuses: type) -> None:
    """Decode may be first."""
    run = Followed("prefill")
    run.manager.request_status[ROOM] = statuses.WaitingForInput
    run.begin()
    assert run.seen == [("bootstrap", 0.0)]


def test_the_word_of_success_carries_its_time(statuses: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by prefill's clock, read by decode's; of an engine without the plug-in there is none."""
    from dsv41_serving.sglang_plugin.handoff import waterfall

    run = Followed("decode")
    now = iter((100.0, 100.25))
    monkeypatch.setattr(waterfall.time, "time", lambda: next(now))
    frames = run.waterfall.stamp([b"KV_STATUS", b"7", b"4", b"0", b""])
    parsed = (ROOM, statuses.Success, 0, None)
    assert run.waterfall.notified(parsed, run.manager, frames) == parsed
    assert run.waterfall.notified(parsed, run.manager, frames[:-1]) == parsed
    assert run.seen == [("notify", 0.25)]


def test_every_hook_fits_the_installed_engine() -> None:
    """With packing and without; the table of stages names all that is observed."""
    from dsv41_serving.sglang_plugin import drift
    from dsv41_serving.sglang_plugin.handoff import packed, rest, waterfall
    from dsv41_serving.spec.model import Handoff

    clock = waterfall.Waterfall()
    hooks = (*packed.make_hooks(Handoff(packed=True), clock), *waterfall.make_hooks(clock), *rest.make_hooks(500))
    assert len({hook.target for hook in hooks}) == 26
    for hook in hooks:
        drift._check(hook)
    assert set(waterfall.STAGES) == {"prefill", "decode"}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_scheduler_that_is_first_to_see_the_end_books_it_once_and_in_order(statuses: type, role: str) -> None:
    """Success is set, the scheduler polls, and only then the thread that set it comes to the waterfall."""
    run = Followed(role)
    run.begin()
    run.set(statuses.WaitingForInput)
    run.clock.now = 3.0
    run.manager.request_status[ROOM] = statuses.Success
    transfer = run.waterfall._transfers[ROOM]
    assert run.waterfall.polled(statuses.Success, run.side) == statuses.Success
    run.clock.now = 9.0
    run.waterfall._finish(transfer, run.manager)
    run.waterfall.follow(None, run.manager, ROOM, statuses.Success)
    ended = {"prefill": [("queue", 0.0), ("prepare", 0.0), ("wire", 0.0)], "decode": [("receive", 3.0)]}[role]
    assert run.seen[1:] == [*ended, ("poll", 0.0)]
