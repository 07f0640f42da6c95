"""The door is the router's list of workers: what is asked of the router, and what is said when it will not."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from dsv41_serving.errors import GateError
from dsv41_serving.run import door
from dsv41_serving.run.door import close_door, open_door
from tests.unit.run.fake_plan import fake_plan

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.plan import Plan


class Router:
    """A router that keeps a list of workers, as far as the door asks for it."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan = plan
        self.workers: list[dict[str, Any]] = [
            {"id": engine.name, "url": engine.url, "worker_type": engine.kind} for engine in plan.engines
        ]
        self.stubborn = False
        transport = httpx.MockTransport(self._answer)
        monkeypatch.setattr(door, "open_client", lambda *_: httpx.AsyncClient(transport=transport))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/readiness":
            kinds = {worker["worker_type"] for worker in self.workers}
            return httpx.Response(200 if kinds == {"prefill", "decode"} else 503)
        if self.stubborn and request.method != "GET":
            return httpx.Response(401)
        if request.method == "DELETE":
            self.workers = [worker for worker in self.workers if path != f"/workers/{worker['id']}"]
            return httpx.Response(202)
        if request.method == "POST":
            self.workers.append({"id": "new", **json.loads(request.content)})
            return httpx.Response(202)
        return httpx.Response(200, json={"workers": self.workers})


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Router:
    plan = fake_plan(tmp_path)
    prefill = plan.engines[0].model_copy(update={"ports": {**plan.engines[0].ports, "bootstrap": 8998}})
    return Router(plan.model_copy(update={"services": (prefill, *plan.services[1:])}), monkeypatch)


def test_half_a_pair_is_taken_away_and_given_back(router: Router) -> None:
    assert asyncio.run(close_door(router.plan))
    assert [worker["worker_type"] for worker in router.workers] == ["prefill"]
    asyncio.run(open_door(router.plan))
    assert router.workers[1:] == [
        {"id": "new", "url": router.plan.service("decode").url, "worker_type": "decode"},
    ]


def test_prefill_comes_back_with_its_bootstrap_port(router: Router) -> None:
    prefill = router.plan.service("prefill")
    del router.workers[0]
    asyncio.run(open_door(router.plan))
    assert router.workers[-1] == {
        "id": "new",
        "url": prefill.url,
        "worker_type": "prefill",
        "bootstrap_port": 8998,
    }


def test_router_that_refuses_is_one_line(router: Router) -> None:
    router.stubborn = True
    with pytest.raises(GateError, match=r"^router: DELETE /workers/decode says 401$"):
        asyncio.run(close_door(router.plan))


def test_router_that_stays_closed_is_one_line(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_PATIENCE_S", 0.0)
    router.workers.append({"id": "other", "url": "http://elsewhere", "worker_type": "regular"})
    with pytest.raises(GateError, match=r"^router: the router has no healthy worker; `dsv41 restart` starts it anew$"):
        asyncio.run(open_door(router.plan))


def test_no_router_is_a_closed_door(tmp_path: Path) -> None:
    """Nobody listens on its port, so nothing comes in."""
    assert asyncio.run(close_door(fake_plan(tmp_path))) is False
