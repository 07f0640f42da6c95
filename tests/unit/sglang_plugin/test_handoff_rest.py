"""The scheduler rests while it waits for hand-offs, and a change of a request ends the rest."""

import threading
import types

import pytest

from dsv41_serving.sglang_plugin.handoff.rest import Rest, is_handing_over, make_hooks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PATIENCE_S = 60.0
"""What a test waits for at most; the rests themselves have no end."""


def rest_in_thread(rest: Rest, waiting: object) -> threading.Thread:
    thread = threading.Thread(target=rest.rest, args=(None, waiting), daemon=True)
    thread.start()
    return thread


def scheduler(role: str, **queues: list[int]) -> object:
    names = {
        "prefill": ("disagg_prefill_bootstrap_queue",),
        "decode": ("disagg_decode_prealloc_queue", "disagg_decode_transfer_queue"),
    }.get(role, ())
    found = {
        name: types.SimpleNamespace(queue=queues.get(name, []), pending_reqs=queues.get("pending", []))
        for name in names
    }
    if role == "prefill":
        found["disagg_prefill_inflight_queue"] = queues.get("disagg_prefill_inflight_queue", [])  # type: ignore[assignment]
    return types.SimpleNamespace(disaggregation_mode=types.SimpleNamespace(value=role), **found)


@pytest.mark.parametrize(
    ("role", "queue"),
    [
        ("prefill", "disagg_prefill_bootstrap_queue"),
        ("prefill", "disagg_prefill_inflight_queue"),
        ("decode", "disagg_decode_transfer_queue"),
    ],
)
def test_it_rests_for_requests_on_their_way_and_for_nothing_else(role: str, queue: str) -> None:
    assert is_handing_over(scheduler(role, **{queue: [1]}))
    assert not is_handing_over(scheduler(role))
    assert not is_handing_over(scheduler("null"))


@pytest.mark.parametrize("queue", ["disagg_decode_prealloc_queue", "pending"])
def test_decode_does_not_rest_while_a_request_waits_for_memory_or_its_prefill(queue: str) -> None:
    queues = {"disagg_decode_transfer_queue": [1], queue: [2]}
    assert not is_handing_over(scheduler("decode", **queues))


def test_an_idle_scheduler_is_not_kept() -> None:
    thread = rest_in_thread(Rest(threading.TIMEOUT_MAX), scheduler("decode"))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_change_ends_the_rest_and_the_next_rest_is_a_new_one() -> None:
    """A rest without end is ended by `wake` alone; news from before is not lost, and counts once."""
    rest = Rest(threading.TIMEOUT_MAX)
    waiting = scheduler("decode", disagg_decode_transfer_queue=[1])
    first = rest_in_thread(rest, waiting)
    first.join(0.05)
    assert first.is_alive()
    rest.wake(None, "manager", 7, 4)
    first.join(PATIENCE_S)
    assert not first.is_alive()
    rest.wake(None)
    told_before = rest_in_thread(rest, waiting)
    told_before.join(PATIENCE_S)
    assert not told_before.is_alive()
    again = rest_in_thread(rest, waiting)
    again.join(0.05)
    assert again.is_alive()
    rest.wake(None)
    again.join(PATIENCE_S)
    assert not again.is_alive()


def test_a_rest_is_as_long_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, timeout: waited.append(timeout))
    Rest(0.0005).rest(None, scheduler("prefill", disagg_prefill_inflight_queue=[1]))
    assert waited == [0.0005]


def test_the_hooks_stand_behind_what_they_follow() -> None:
    assert make_hooks(0) == ()
    hooks = make_hooks(500)
    assert [(hook.target.rsplit(".", 1)[-1], hook.hook.__name__, hook.kind) for hook in hooks] == [
        ("on_idle", "rest", "after"),
        ("update_status", "wake", "after"),
    ]
    assert {hook.hook.__self__ for hook in hooks} == {hooks[0].hook.__self__}  # type: ignore[attr-defined]
    assert hooks[0].hook.__self__._longest_s == 0.0005  # type: ignore[attr-defined]
