"""Capacity, preflight and benchmarks against the real stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dsv41_serving.bench.result import read_result

# Importing SGLang's load generator takes a minute on a busy machine.
BENCH_TIMEOUT_S = 1800.0

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.stack import StackUnderTest


def test_capacity_is_what_the_engines_report_within_three_per_cent(stack: StackUnderTest) -> None:
    done = stack.run("capacity", "--running", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["compared"]
    assert {(row["engine"], row["quantity"]) for row in rows} == {
        (engine, quantity) for engine in ("prefill", "decode") for quantity in ("pool tokens", "pool GiB")
    }
    assert all(abs(row["error"]) < 0.03 for row in rows), rows


def test_preflight_beside_a_running_stack_finds_no_conflict(stack: StackUnderTest) -> None:
    """Its ports and processes are its own."""
    report = json.loads(stack.run("preflight", "--json").stdout)
    answers = {row["check"]: row for row in report["checks"]}
    assert answers["network.ports"]["seen"].endswith("held by what runs here")
    assert answers["leftovers.records"]["seen"] == "running now: decode, prefill, router"
    assert answers["leftovers.orphans"]["verdict"] == "pass"
    assert {name for name, row in answers.items() if row["verdict"] == "fail"} == set()


def test_a_benchmark_keeps_every_latency_and_becomes_a_page(stack: StackUnderTest, tmp_path: Path) -> None:
    """One request of 64 tokens in, 16 out: the answer has exactly that length, whatever the model would say."""
    done = stack.run(
        *("bench", "run", "single", "--scale", "0.015625", "--rounds", "2", "--out", str(tmp_path / "r.json")),
        timeout=BENCH_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "r.json")
    (run,) = result.runs_of("single")
    assert [round_.answers for round_ in run.rounds] == [(16,), (16,)]
    assert run.input_tokens == 64
    assert all(len(round_.itl_s[0]) >= 10 for round_ in run.rounds)
    assert set(run.metrics()) == {"decode_tok_s", "output_tok_s", "ttft_ms", "itl_ms", "itl_p99_ms"}
    assert (result.deployment["through"], result.deployment["scale"]) == ("router", 0.015625)
    page = stack.run("bench", "report", str(tmp_path / "r.json"), "--out", str(tmp_path / "page"))
    assert page.returncode == 0, page.stderr
    assert "single: one request" in (tmp_path / "page/report.html").read_text(encoding="utf-8")
