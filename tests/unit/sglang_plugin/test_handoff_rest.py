"""The scheduler rests while it waits for hand-offs, and a change of a request ends the rest."""

import threading
import time
import types

import pytest

from dsv41_serving.sglang_plugin.handoff.rest import Rest, is_handing_over, make_hooks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NEVER_S = 60.0
"""A rest that only news can end within a test."""


def scheduler(role: str, **queues: list[int]) -> object:
    names = {
        "prefill": ("disagg_prefill_bootstrap_queue",),
        "decode": ("disagg_decode_prealloc_queue", "disagg_decode_transfer_queue"),
    }.get(role, ())
    found = {name: types.SimpleNamespace(queue=queues.get(name, [])) for name in names}
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


def test_decode_does_not_rest_while_a_request_waits_for_memory() -> None:
    queues = {"disagg_decode_transfer_queue": [1], "disagg_decode_prealloc_queue": [2]}
    assert not is_handing_over(scheduler("decode", **queues))


def test_an_idle_scheduler_is_not_kept() -> None:
    Rest(NEVER_S).rest(None, scheduler("decode"))


def test_a_change_ends_the_rest_and_the_next_rest_is_a_new_one() -> None:
    """The thread that waits without end is woken by `wake`; news from before is not lost, and counts once."""
    rest = Rest(NEVER_S)
    waiting = scheduler("decode", disagg_decode_transfer_queue=[1])
    ended = threading.Event()

    def run() -> None:
        rest.rest(None, waiting)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert not ended.wait(0.05)
    rest.wake(None, "manager", 7, 4)
    assert ended.wait(NEVER_S)
    thread.join()
    rest.wake(None)
    rest.rest(None, waiting)
    again = threading.Thread(target=lambda: rest.rest(None, waiting), daemon=True)
    again.start()
    again.join(0.05)
    assert again.is_alive()
    rest.wake(None)
    again.join(NEVER_S)
    assert not again.is_alive()


def test_without_news_a_rest_ends_by_itself() -> None:
    began = time.monotonic()
    Rest(0.02).rest(None, scheduler("prefill", disagg_prefill_inflight_queue=[1]))
    assert time.monotonic() - began >= 0.02


def test_no_rest_no_hooks() -> None:
    assert make_hooks(0) == ()
    assert [hook.target.rsplit(".", 1)[-1] for hook in make_hooks(500)] == ["on_idle", "update_status"]
