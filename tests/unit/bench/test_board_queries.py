"""The history behind the figure about the boards' queries is one that Prometheus takes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import httpx
import pytest

from dsv41_serving.bench import board_queries
from dsv41_serving.dashboards.probe import Answer
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

needs_prometheus = pytest.mark.skipif(
    not shutil.which("promtool") or not shutil.which("prometheus"),
    reason="needs Prometheus: apt-get install --no-install-recommends prometheus",
)


def test_names_are_those_of_engines_router_exporters_and_rules() -> None:
    names = board_queries.asked_names()
    assert {
        "sglang:kv_used_tokens",
        "sglang:time_to_first_token_seconds_bucket",
        "smg_http_requests_total",
        "dsv41_gpu_power_watts",
        "dsv41:kv_free:ratio",
        "node_cpu_seconds_total",
        "up",
    } <= names
    assert not {name for name in names if name.endswith(("_", ":"))}


def test_eight_gpus_stand_in_where_there_are_none() -> None:
    series = board_queries.gpu_series()
    power = [dict(labels)["gpu"] for name, labels, _ in series if name == "dsv41_gpu_power_watts"]
    assert power == [str(gpu) for gpu in range(8)]
    nvlink = [labels for name, labels, _ in series if name == "dsv41_gpu_nvlink_bytes_total"]
    assert len(nvlink) == len(set(nvlink)) == 16


@needs_prometheus
def test_prometheus_serves_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_queries, "HOURS", 2)
    series: list[board_queries.Series] = [
        ("smg_http_requests_total", (("node", 'a "quoted" name'),), 7200.0),
        ("sglang:kv_used_tokens", (("node", "a"),), 100.0),
    ]
    end = board_queries.write_history(series, tmp_path)
    with board_queries.serve(tmp_path / "tsdb") as url:

        def ask(query: str) -> float:
            body = httpx.get(f"{url}/api/v1/query", params={"query": query, "time": end}, timeout=10).json()
            return float(body["data"]["result"][0]["value"][1])

        assert ask("rate(smg_http_requests_total[5m])") == pytest.approx(1, rel=0.01)
        assert 100 <= ask("sglang:kv_used_tokens") <= 110
        assert ask("count_over_time(sglang:kv_used_tokens[1h])") == 720


def test_a_query_counts_with_its_median() -> None:
    def answer(panel: str, seconds: float) -> Answer:
        return Answer("board", panel, "curve", "x", 1, seconds)

    runs = [[answer("slow", slow), answer("fast", 0.01)] for slow in (0.9, 0.1, 0.2)]
    result = board_queries.summarise(runs, series=10)
    assert result["slowest"][0] == {"query": "board / slow / curve", "seconds": 0.2}
    assert result["figures"][0] == {"name": "slowest query of the boards", "value": 0.2, "unit": "s", "target": 0.2}
    assert result["history"]["samples"] == 10 * 24 * 3600 // 5


def test_without_a_prometheus_it_says_what_to_do() -> None:
    with pytest.raises(InputError, match="no Prometheus answers"):
        board_queries.list_series("http://127.0.0.1:9")
