"""Capacity, preflight and benchmarks against the real stack."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import httpx

from dsv41_serving.bench.handoff import read_page
from dsv41_serving.bench.result import METRICS, read_result
from dsv41_serving.bench.soak import count_mismatches
from dsv41_serving.check.metrics import KV_USED
from tests.engine.stack import MODEL, PORTS, wait_until

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
    assert set(run.metrics()) == set(METRICS)
    assert (result.deployment["through"], result.deployment["scale"]) == ("router", 0.015625)
    page = stack.run("bench", "report", str(tmp_path / "r.json"), "--out", str(tmp_path / "page"))
    assert page.returncode == 0, page.stderr
    assert "single: one request" in (tmp_path / "page/report.html").read_text(encoding="utf-8")


def test_the_time_of_a_hand_off_is_told_stage_by_stage(stack: StackUnderTest, tmp_path: Path) -> None:
    """Thirty layers of keys and of values, 384 bytes a token in each; every token in every one is a block to NIXL."""
    out = tmp_path / "handoff.json"
    done = stack.run("bench", "handoff", "--prompt", "16", "--prompt", "300", "--rounds", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    short, long = json.loads(out.read_text(encoding="utf-8"))["lengths"]
    (one,), (other,) = short["samples"], long["samples"]
    assert (short["prompt"], long["prompt"], one["path"], other["path"]) == (16, 300, "stock", "stock")
    assert other["bytes"] - one["bytes"] == (300 - 16) * 60 * 384
    assert other["descriptors"] - one["descriptors"] == (300 - 16) * 60
    assert {stage for stage, seconds in one["stages"].items() if seconds > 0} >= {
        *("prefill.bootstrap", "prefill.queue", "prefill.prepare", "prefill.wire", "prefill.poll"),
        *("decode.bootstrap", "decode.allocate", "decode.receive", "decode.notify", "decode.poll", "decode.admit"),
    }
    assert one["stages"]["decode.unpack"] == 0


def test_packed_hand_offs_give_the_same_answers_and_leave_nothing_behind(node: StackUnderTest) -> None:
    """SGLang compares a checksum of every hand-off; prompts of one block and of several, clients that leave in the middle."""
    prompts = [" ".join(str(number) for number in range(count)) for count in (2, 30, 220)]

    def ask(prompt: str, timeout: float = 120) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        reply = httpx.post(f"{node.url}/v1/completions", json=body, timeout=timeout)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])

    def count() -> tuple[dict[str, float], float]:
        page = read_page(httpx.get(f"http://127.0.0.1:{PORTS['engines.prefill.port']}/metrics", timeout=60).text)
        paths = {
            path: page.get(f"dsv41_handoff_transfers_total{{{path}}}", 0.0) for path in ("packed", "stock", "mixed")
        }
        return paths, page["dsv41_handoff_slots_busy"]

    expected = [ask(prompt) for prompt in prompts]
    node.down()
    node.overrides = [
        *("handoff={packed=true, slot_mib=4}", "engine.args.disaggregation-enable-kv-checksum=true"),
        "engine.warm_up_tokens=[48, 24]",
    ]
    node.up()
    # Both halves have answered alone before they were ready: each length once, the shorter one eight times at once.
    for role in ("prefill", "decode"):
        assert node.metric(role, "sglang:prompt_tokens_total") >= 48 + 9 * 24
    before, _ = count()
    assert [ask(prompt) for prompt in prompts] == expected
    after, busy = count()
    assert after["packed"] - before["packed"] == len(prompts)
    assert (after["stock"], after["mixed"], busy) == (0.0, 0.0, 0.0)
    for delay in (0.02, 0.05, 0.1, 0.2):
        with contextlib.suppress(httpx.TimeoutException):
            ask(f"{delay} {prompts[-1]}", timeout=delay)
    wait_until(lambda: node.metric("decode", KV_USED) == 0, 60, f"decode's memory is free again\n{node.logs()}")
    wait_until(lambda: count()[1] == 0, 60, "every slot is free again")
    assert [ask(prompt) for prompt in prompts] == expected
    assert count_mismatches(str(node.state_dir)) == 0
