"""What an engine still has to do, as its own queues say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from dsv41_serving.check.metrics import MetricsPage
from dsv41_serving.errors import GateError
from dsv41_serving.run import drain
from dsv41_serving.run.drain import describe_work, refuse_starting, wait_until_idle
from tests.unit.run.fake_plan import fake_plan, record_services

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("page", "work"),
    [
        ("", ""),
        ("sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n", ""),
        ('sglang:num_running_reqs{tp_rank="0"} 2\n', "2 running"),
        (
            """sglang:num_running_reqs 2
sglang:num_queue_reqs 1
sglang:num_decode_transfer_queue_reqs 1
sglang:num_prefill_inflight_queue_reqs 2
""",
            "2 running, 1 queued, 3 in hand-off",
        ),
    ],
)
def test_only_what_is_left_is_named(page: str, work: str) -> None:
    """Hand-offs count: their memory is in use on the other side."""
    assert describe_work(MetricsPage(page)) == work


@pytest.mark.parametrize(
    ("page", "scheduled", "work"),
    [
        ("sglang:num_running_reqs 0\n", 1, "1 just begun"),
        ('sglang:http_requests_active{method="POST",endpoint="/v1/chat/completions"} 2\n', 0, "2 just begun"),
        ('sglang:http_requests_active{method="GET",endpoint="/metrics"} 1\n', 0, ""),
        ("sglang:num_running_reqs 2\n", 2, "2 running"),
    ],
)
def test_a_request_that_the_gauges_do_not_know_yet_is_work(page: str, scheduled: int, work: str) -> None:
    """They follow every few dozen steps; the scheduler and the HTTP server know at once."""
    assert describe_work(MetricsPage(page), scheduled) == work


@pytest.mark.parametrize(
    ("loads", "left"),
    [
        ({"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]}, "3 just begun"),
        ({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}, ""),
    ],
)
def test_the_scheduler_itself_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: dict[str, object], left: str
) -> None:
    """The page knows nothing yet."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=loads) if request.url.path == "/v1/loads" else httpx.Response(200, text="")

    monkeypatch.setattr(drain, "open_client", lambda *_: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    service = fake_plan(tmp_path).service("decode")
    assert asyncio.run(wait_until_idle(service, 0.0, lambda _: None)) == left


def test_a_node_that_is_still_starting_is_not_drained(tmp_path: Path) -> None:
    """Its router would open by itself a moment later."""
    plan = fake_plan(tmp_path)
    record_services(plan)
    refuse_starting(plan)
    record_services(plan, decode="starting", router="waiting")
    with pytest.raises(GateError) as refused:
        refuse_starting(plan)
    assert str(refused.value).startswith("node test: still starting, decode: starting; router: waiting; drain it once")
    record_services(plan, decode="failed", router="stopped")
    refuse_starting(plan)


def test_an_engine_that_does_not_answer_has_nothing_left(tmp_path: Path) -> None:
    """There is nobody to wait for."""
    service = fake_plan(tmp_path).service("prefill")
    assert asyncio.run(wait_until_idle(service, 60.0, lambda _: None)) == ""
