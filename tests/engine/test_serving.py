"""A person chats with the stack: through curl, the OpenAI client, streams, eight at a time, long prompts, cancelled streams."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

from dsv41_serving.run.session import session_members
from tests.engine.stack import MODEL, PORTS, StackUnderTest, wait_until

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PLAIN = {"chat_template_kwargs": {"thinking": False}}


def test_status_says_that_every_service_is_ready(stack: StackUnderTest) -> None:
    rows = stack.status()
    assert list(rows) == ["prefill", "decode", "router"]
    for name, row in rows.items():
        assert row["state"] == "ready"
        assert row["model"] == MODEL
        assert row["pid"] == stack.record(name).pid
        assert row["uptime_s"] > 0
    assert rows["prefill"]["kv_capacity_tokens"] > 8192
    assert rows["decode"]["queued"] == 0


def test_gate_by_hand_sees_both_engines_and_the_hand_off(stack: StackUnderTest) -> None:
    done = stack.run("gate", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == 0, findings
    passed = {(f["service"], f["check"]) for f in findings if f["passed"]}
    assert len(passed) == len(findings)
    for engine in ("prefill", "decode"):
        assert {(engine, "identity"), (engine, "model"), (engine, "forward")} <= passed
    assert {("router", "identity"), ("router", "workers"), ("router", "model"), ("router", "conversation")} <= passed
    assert {("prefill", "used"), ("decode", "used"), ("prefill", "hand-off"), ("prefill", "lane")} <= passed


def test_a_hand_off_over_a_slower_lane_than_was_proven_fails_the_gate(stack: StackUnderTest) -> None:
    """The start has proven this machine and UCX has told the engine's lane; here the baseline is of a better one."""
    path = stack.state_dir / "transport" / "proof.json"
    kept = path.read_text(encoding="utf-8")
    proof = json.loads(kept)
    lane = stack.record("prefill").lane
    assert lane == proof["lane"] != "cuda_ipc"
    try:
        path.write_text(json.dumps({**proof, "lane": "cuda_ipc", "best_gb_s": 230.0}), encoding="utf-8")
        done = stack.run("gate", "router", "--json")
    finally:
        path.write_text(kept, encoding="utf-8")
    (failed,) = [finding for finding in json.loads(done.stdout) if not finding["passed"]]
    assert (done.returncode, failed["service"], failed["check"]) == (1, "prefill", "lane")
    assert failed["seen"].startswith(f"hands over through {lane}, where cuda_ipc at 230.00 GB/s was proven")


def test_curl_gets_an_answer(stack: StackUnderTest) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed; enable with: apt-get install curl")
    body = json.dumps({"model": MODEL, "messages": QUESTION, "max_tokens": 200, "temperature": 0})
    url = f"{stack.url}/v1/chat/completions"
    command = ["curl", "-sS", url, "-H", "content-type: application/json", "-d", body]
    reply = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert "Paris" in reply["choices"][0]["message"]["content"]


def test_openai_client_thinks_by_default_and_on_request_does_not(stack: StackUnderTest) -> None:
    client = stack.client()
    thinking = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=200, temperature=0)
    message = thinking.choices[0].message
    assert thinking.model == MODEL
    assert message.model_extra["reasoning_content"]
    assert message.content
    assert "think>" not in message.content
    assert thinking.choices[0].finish_reason == "stop"
    plain = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=100, temperature=0, extra_body=PLAIN
    )
    assert "Paris" in plain.choices[0].message.content
    assert not plain.choices[0].message.model_extra.get("reasoning_content")
    assert plain.usage.completion_tokens < thinking.usage.completion_tokens


def test_stream_gives_the_same_text_as_the_whole_answer(stack: StackUnderTest) -> None:
    client = stack.client()
    request = {"model": MODEL, "messages": QUESTION, "max_tokens": 60, "temperature": 0, "extra_body": PLAIN}
    whole = client.chat.completions.create(**request).choices[0].message.content
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **request))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 1
    assert {c.model for c in chunks} == {MODEL}
    assert chunks[-1].usage.completion_tokens > 0


def test_every_request_uses_both_engines_and_nixl(stack: StackUnderTest) -> None:
    names = [
        ("prefill", "sglang:prompt_tokens_total"),
        ("decode", "sglang:generation_tokens_total"),
        ("prefill", "sglang:kv_transfer_total_mb_sum"),
    ]
    before = {key: stack.metric(*key) for key in names}
    usage = (
        stack.client()
        .chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=20, temperature=0, extra_body=PLAIN)
        .usage
    )
    moved = {key: stack.metric(*key) - before[key] for key in names}
    assert moved["prefill", "sglang:prompt_tokens_total"] == usage.prompt_tokens
    assert moved["decode", "sglang:generation_tokens_total"] == pytest.approx(usage.completion_tokens, abs=1)
    # 30 layers, keys and values, 3 heads of 64 in bfloat16: what the prompt's KV weighs.
    weight_mib = usage.prompt_tokens * 30 * 2 * 3 * 64 * 2 / 2**20
    assert moved["prefill", "sglang:kv_transfer_total_mb_sum"] == pytest.approx(weight_mib, rel=0.05)


def test_eight_requests_at_once_all_get_their_own_answer(stack: StackUnderTest) -> None:
    client = stack.client()
    countries = ["France", "Italy", "Spain", "Germany", "Japan", "China", "Egypt", "Canada"]

    def ask(country: str) -> str:
        messages = [{"role": "user", "content": f"What is the capital of {country}?"}]
        reply = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=40, temperature=0, extra_body=PLAIN
        )
        return reply.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, countries))
    named = sum(country in answer for country, answer in zip(countries, answers, strict=True))
    assert all(answers)
    assert named >= 6, answers  # a toy model may phrase one or two without the country's name


def test_prompt_of_two_thousand_tokens_spans_several_chunks(stack: StackUnderTest) -> None:
    sentence = "The quick brown fox jumps over the lazy dog near the river bank. "
    messages = [{"role": "user", "content": sentence * 160 + "What animal jumps?"}]
    reply = stack.client().chat.completions.create(
        model=MODEL, messages=messages, max_tokens=20, temperature=0, extra_body=PLAIN
    )
    assert reply.usage.prompt_tokens > 2048, "more than one chunk of the profile"
    assert (reply.choices[0].message.content or "").strip()


def test_cancelled_stream_frees_its_kv_on_both_sides(stack: StackUnderTest) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from one to one thousand in words."}],
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
        **PLAIN,
    }
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body, timeout=120) as response:
        lines = response.iter_lines()
        first = [next(lines) for _ in range(6)]
        wait_until(lambda: stack.metric("decode", "sglang:num_running_reqs") == 1, 20, "decode runs the request")
    assert any(line.startswith("data:") for line in first)
    wait_until(lambda: stack.metric("decode", "sglang:num_running_reqs") == 0, 30, "decode ends the request")
    for engine in ("prefill", "decode"):
        wait_until(
            lambda engine=engine: stack.metric(engine, "sglang:kv_used_tokens") == 0,
            30,
            f"{engine} frees the KV of the request",
        )


def test_engine_log_names_every_phase_the_supervisor_follows(stack: StackUnderTest) -> None:
    expected = {"importing", "loading weights", "allocating KV", "opening port", "serving HTTP", "gate"}
    for engine in ("prefill", "decode"):
        assert set(_last_start(stack.state_dir, engine)) == expected
    assert set(_last_start(stack.state_dir, "router")) == {"importing", "registering workers", "serving HTTP", "gate"}


def test_engines_listen_on_loopback_only(stack: StackUnderTest) -> None:
    """Not only the HTTP ports: control sockets, UCX, rendezvous, metrics."""
    sessions = {stack.record(name).pid for name in ("prefill", "decode", "router")}
    members = {pid for session in sessions if session for pid in session_members(session)}
    facts = json.loads(stack.run("facts", "--json").stdout)
    listening = {
        (listener["address"], listener["port"]) for listener in facts["listeners"] if members & set(listener["holders"])
    }
    assert {PORTS["engines.prefill.port"], PORTS["engines.decode.port"]} <= {port for _, port in listening}
    assert {address for address, _ in listening} == {"127.0.0.1"}, listening


def test_a_second_up_is_refused(stack: StackUnderTest) -> None:
    done = stack.run("up", "--detach")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"already up (pid {stack.stack_pid()}" in done.stderr
    assert stack.status()["router"]["state"] == "ready"


def _last_start(state_dir: Path, service: str) -> dict[str, float]:
    starts: list[dict[str, float]] = json.loads((state_dir / "history" / f"{service}.json").read_text())
    return starts[-1]
