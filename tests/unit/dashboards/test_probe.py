"""Queries are asked as Grafana asks them, and the verb says which are dead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from dsv41_serving.cli import cli
from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.probe import ask_panels, fill_in, queries
from dsv41_serving.dashboards.silent import SILENT
from dsv41_serving.errors import InputError
from tests.unit.dashboards.fake_prometheus import FakePrometheus, serve_prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with serve_prometheus() as fake:
        yield fake


def _check(prometheus: FakePrometheus, *options: str) -> Result:
    return CliRunner().invoke(
        cli, ["--profile", "embedded", "dashboards", "check", "--prometheus", prometheus.url, *options]
    )


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
    prometheus.empty = {ask_panels(BOARDS, prometheus.url)[1].expr}
    prometheus.refused = "sort_desc"
    first, second, third = ask_panels(BOARDS, prometheus.url)[:3]
    assert (first.alive, first.problem) == (False, "parse error: not today")
    assert (second.alive, second.problem) == (False, "")
    assert (third.alive, third.series) == (True, 1)


def test_a_series_of_nothing_but_nan_draws_nothing(prometheus: FakePrometheus) -> None:
    prometheus.value = "NaN"
    assert not any(answer.alive for answer in ask_panels(BOARDS, prometheus.url))


def test_nobody_at_the_address_is_one_line() -> None:
    with pytest.raises(InputError, match=r"no Prometheus answers .*; name its address with --prometheus"):
        ask_panels(BOARDS, "http://127.0.0.1:9")


def test_check_passes_when_only_silent_queries_are_silent(prometheus: FakePrometheus) -> None:
    answers = ask_panels(BOARDS, prometheus.url)
    prometheus.empty = {answer.expr for answer in answers if answer.where in SILENT}
    done = _check(prometheus)
    assert done.exit_code == 0
    assert "silent  dsv41-node / Power / GPU {{gpu}}: needs an NVIDIA driver" in done.output
    alive = len(answers) - len(SILENT)
    assert done.output.splitlines()[-1] == f"{alive} of {len(answers)} queries have data, 0 are dead"


def test_check_names_the_dead_query_and_fails(prometheus: FakePrometheus) -> None:
    prometheus.empty = {'max(dsv41_handoff_baseline_gb_s{node=~".*"})'}
    done = _check(prometheus)
    assert done.exit_code == 1
    expected = "dead    dsv41-main / Hand-off speed / what the link can do: no data: max(dsv41_handoff_baseline_gb_s"
    assert expected in done.output


def test_check_as_json_has_every_query_with_its_time(prometheus: FakePrometheus) -> None:
    rows = json.loads(_check(prometheus, "--json").output)
    assert len(rows) == len(list(queries(BOARDS)))
    assert rows[0]["panel"] == "KV fullness"
    assert all(row["seconds"] >= 0 for row in rows)
