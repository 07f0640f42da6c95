"""From the noise of real launches to how often a comparison is right, and a series whose truth is known."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest
from click.testing import CliRunner

from dsv41_serving.bench.noise import measure_noise, simulate
from dsv41_serving.bench.planted import PATHS, find_due, find_needed, serve_paths, summarise
from dsv41_serving.bench.result import write_result
from dsv41_serving.cli import cli
from dsv41_serving.errors import InputError
from tests.unit.bench.sets import make_round, make_run, make_set

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.bench.result import ResultSet


def launches(spread: float, count: int = 12) -> ResultSet:
    """Return launches of one configuration that differ by `spread` (standard deviation)."""
    chance = random.Random(5)  # noqa: S311 - a simulation that repeats
    return make_set(*([make_run(rounds=[make_round(0.01 * (1 + chance.gauss(0, spread)))])] for _ in range(count)))


def test_a_quiet_machine_needs_few_launches_and_a_noisy_one_says_how_many() -> None:
    (quiet,), (loud,) = (measure_noise(launches(spread), slower=0.05, trials=400) for spread in (0.004, 0.03))
    assert quiet.needed is not None
    assert loud.needed is not None
    assert quiet.needed <= 3 < loud.needed
    assert all(row.quiet >= 0.93 for row in loud.rows)
    assert [row.found for row in loud.rows] == sorted(row.found for row in loud.rows)


def test_where_no_number_is_enough_it_says_so() -> None:
    (hopeless,) = measure_noise(launches(0.5), slower=0.05, trials=100)
    assert hopeless.needed is None


def test_the_spread_is_that_of_the_launches() -> None:
    """Of their headline metric, as a share of the mean."""
    result = make_set(*([make_run(rounds=[make_round(step)])] for step in (0.010, 0.010, 0.0125, 0.0125)))
    (found,) = measure_noise(result, slower=0.05, trials=10)
    assert (found.metric, found.samples) == ("decode_tok_s", 4)
    assert found.spread == pytest.approx((4 / 3) ** 0.5 * 10 / 90)


def test_a_slow_down_is_planted_in_the_direction_of_the_metric() -> None:
    for metric in ("decode_tok_s", "itl_ms"):
        row = simulate((10.0, 10.01, 9.99, 10.0), metric, 4, slower=0.05, floor=0.015, level=0.05, trials=200)
        assert row.found == row.quiet == 1.0


def test_three_launches_say_too_little() -> None:
    with pytest.raises(InputError, match="3 launches of single say too little"):
        measure_noise(launches(0.01, 3), slower=0.05)


def test_the_verb_says_it_in_words_and_in_json(tmp_path: Path) -> None:
    write_result(launches(0.004), tmp_path / "r.json")
    said = CliRunner().invoke(cli, ["bench", "noise", str(tmp_path / "r.json"), "--trials", "100"])
    assert said.exit_code == 0, said.output
    assert "a slow-down of 5% in 19 of 20" in said.output
    (row,) = json.loads(
        CliRunner().invoke(cli, ["bench", "noise", str(tmp_path / "r.json"), "--trials", "100", "--json"]).output
    )
    assert row["needed"] == next(each["launches"] for each in row["rows"] if each["enough"])


# --- the planted series ---------------------------------------------------------------------------------------------


def test_what_is_stretched_is_the_time_since_the_first_piece() -> None:
    assert find_due(100.0, 100.0, 0.05) == 100.0
    assert find_due(100.0, 102.0, 0.05) == pytest.approx(102.1)
    assert find_due(100.0, 102.0, 0.0) == 102.0


class Answers(BaseHTTPRequestHandler):
    """Says what it was asked, as a stream, and 404 at one path."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(404 if self.path == "/absent" else 200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for piece in (b"data: ", self.headers["authorization"].encode(), b" ", body, b"\n\n"):
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def test_every_path_passes_requests_and_answers_on() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as upstream:
        thread = threading.Thread(target=upstream.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{upstream.server_port}"
            with serve_paths(address, dict.fromkeys(PATHS, 0.05)) as urls:
                assert list(urls) == list(PATHS)
                for url in urls.values():
                    reply = httpx.post(f"{url}/v1/completions", content=b"{}", headers={"authorization": "Bearer k"})
                    assert (reply.status_code, reply.text) == (200, "data: Bearer k {}\n\n")
                    assert reply.headers["content-type"].startswith("text/event-stream")
                    gone = httpx.post(f"{url}/absent", content=b"", headers={"authorization": "x"})
                    assert gone.status_code == 404
        finally:
            upstream.shutdown()
            thread.join()


def test_a_series_counts_what_was_right() -> None:
    quiet = {"same": [10.0, 10.01, 9.99], "same again": [10.0, 10.01, 9.99], "slower": [9.5, 9.51, 9.49]}
    loud = {"same": [10.0, 12.0, 8.0], "same again": [10.0, 12.0, 8.0], "slower": [9.5, 11.0, 8.0]}
    found = summarise([quiet, loud])
    figures = {row["name"]: row["value"] for row in found["figures"]}
    assert figures["identical called no difference"] == 2
    assert figures["planted slow-down found"] == 1
    assert figures["comparisons of each kind"] == 2
    assert [row["judgement"] for row in found["planted_rows"]] == ["slower", "no difference"]


def test_a_series_says_how_many_rounds_its_noise_would_take() -> None:
    """Of the identical paths alone: what was planted is no noise."""
    chance = random.Random(8)  # noqa: S311 - a simulation that repeats

    def series(spread: float) -> list[dict[str, list[float]]]:
        return [{name: [10 * (1 + chance.gauss(0, spread)) for _ in range(4)] for name in PATHS[:2]} for _ in range(5)]

    quiet, loud = find_needed(series(0.003), 0.05, trials=200), find_needed(series(0.02), 0.05, trials=200)
    assert quiet is not None
    assert loud is not None
    assert quiet < loud
    assert find_needed(series(0.6), 0.05, trials=50) is None
