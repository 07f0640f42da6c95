"""Queries are asked as Grafana asks them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.probe import ask_panels, fill_in, queries
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakePrometheus:
    """Answers every query with one series, except those that `refused` or `empty` say."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.empty: set[str] = set()
        self.value = "1"

    def answer(self, path: str, params: dict[str, str]) -> dict[str, Any]:
        self.asked.append((path, params))
        if params["query"] in self.empty:
            return {"status": "success", "data": {"result": []}}
        if "sort_desc" in params["query"]:
            return {"status": "error", "error": "parse error: no sorting today"}
        sample = [1.0, self.value]
        return {"status": "success", "data": {"result": [{"metric": {}, "value": sample, "values": [sample]}]}}


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            text = json.dumps(fake.answer(url.path, {k: v[0] for k, v in parse_qs(url.query).items()})).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("step_s", "window"), [(1, "20s"), (10, "20s"), (288, "293s")], ids=["short range", "half an hour", "a day"]
)
def test_rate_window_holds_four_scrapes_and_more_than_a_step(step_s: float, window: str) -> None:
    filled = fill_in('rate(x{node=~"$node"}[$__rate_interval])', step_s=step_s, scrape_s=5, range_s=300)
    assert filled == f'rate(x{{node=~".*"}}[{window}])'


def test_a_variable_no_board_defines_is_an_error() -> None:
    with pytest.raises(KeyError, match="instance"):
        fill_in('x{instance="$instance"}', step_s=1, scrape_s=5, range_s=300)


def test_every_query_is_asked_once_without_variables(prometheus: FakePrometheus) -> None:
    answers = ask_panels(BOARDS, prometheus.url, range_s=600, end=1000.0)
    assert len(answers) == len(prometheus.asked) == len(list(queries(BOARDS)))
    assert not [params["query"] for _, params in prometheus.asked if "$" in params["query"]]
    curves = [params for path, params in prometheus.asked if path == "/api/v1/query_range"]
    assert {(params["start"], params["end"], params["step"]) for params in curves} == {("400.0", "1000.0", "5")}
    assert {params["time"] for path, params in prometheus.asked if path == "/api/v1/query"} == {"1000.0"}


def test_refused_empty_and_answered_queries_are_told_apart(prometheus: FakePrometheus) -> None:
    silent = ask_panels(BOARDS, prometheus.url)[1].expr
    prometheus.empty = {silent}
    first, second, third = ask_panels(BOARDS, prometheus.url)[:3]
    assert (first.alive, first.problem) == (False, "parse error: no sorting today")
    assert (second.alive, second.problem) == (False, "")
    assert (third.alive, third.series) == (True, 1)


def test_a_series_of_nothing_but_nan_draws_nothing(prometheus: FakePrometheus) -> None:
    prometheus.value = "NaN"
    assert not any(answer.alive for answer in ask_panels(BOARDS, prometheus.url))


def test_nobody_at_the_address_is_one_line() -> None:
    with pytest.raises(InputError, match=r"no Prometheus answers .*; name its address with --prometheus"):
        ask_panels(BOARDS, "http://127.0.0.1:9")
