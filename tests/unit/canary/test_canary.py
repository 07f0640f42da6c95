"""The canary against a deployment that can be broken on purpose: each step notices its own fault, and the counts are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from dsv41_serving.canary.conversation import TOKEN_LIMIT, hold_conversation
from dsv41_serving.canary.result import CanaryResults, CanaryRun, Step
from dsv41_serving.contract.deployment import Deployment, Server
from dsv41_serving.spec.model import Contract
from tests.unit.contract.fake_deployment import DECODE, PREFILL, ROUTER, FakeDeployment


def converse(
    *faults: str, contract: Contract | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> CanaryRun:
    """Hold the conversation with a deployment that has `faults`."""

    async def run() -> CanaryRun:
        fake = FakeDeployment(*faults, contract=contract)
        async with httpx.AsyncClient(transport=transport or fake) as client:
            engines = tuple(
                Server(name, name, url, f"{url}/metrics") for name, url in (("prefill", PREFILL), ("decode", DECODE))
            )
            front = Server("router", "router", ROUTER)
            return await hold_conversation(Deployment(client, fake.contract, front, engines, own=True))

    return asyncio.run(run())


def problems_of(run: CanaryRun) -> dict[str, str]:
    return {step.name: step.problem for step in run.steps if step.problem}


def test_a_sound_deployment_passes_within_the_limit() -> None:
    run = converse()
    assert problems_of(run) == {}
    assert [step.name for step in run.steps] == ["thinking", "cancel", "tool_call", "answer"]
    assert 0 < run.generated_tokens < TOKEN_LIMIT
    assert run.first_token_s is not None


def test_an_answer_under_another_name_is_seen() -> None:
    assert "model is default, not deepseek-v4.1-flash" in problems_of(converse("chunk-name"))["thinking"]


def test_without_any_server_every_step_fails_and_nothing_is_raised() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    run = converse(transport=httpx.MockTransport(refuse))
    assert set(problems_of(run)) == {"thinking", "cancel", "tool_call", "answer"}
    assert run.first_token_s is None
    assert not run.passed


def test_status_200_with_empty_content_is_no_answer() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        message = {"role": "assistant", "content": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"model": "deepseek-v4.1-flash", "choices": [choice], "usage": {}})

    problems = problems_of(converse(transport=httpx.MockTransport(answer)))
    assert problems["answer"] == "empty content"
    assert problems["tool_call"] == "no call with arguments of the schema"


def test_an_error_status_is_told_with_its_text() -> None:
    run = converse(transport=httpx.MockTransport(lambda _: httpx.Response(503, text="server_selection_failed")))
    assert "HTTP 503: server_selection_failed" in problems_of(run)["thinking"]


def _run(*, problem: str = "") -> CanaryRun:
    step = Step(name="answer", seen="'Paris'", problem=problem)
    return CanaryRun(finished_at=10.0, seconds=1.5, first_token_s=0.25, generated_tokens=20, steps=(step,))


def test_results_count_runs_and_failures(tmp_path: Path) -> None:
    results = CanaryResults(tmp_path)
    assert results.read() is None
    results.add(_run())
    results.add(_run(problem="empty content"))
    last = results.add(_run())
    assert (last.runs, last.failures) == (3, 1)
    assert results.read() == last


def test_a_damaged_result_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "run.json").write_text("{")
    assert CanaryResults(tmp_path).read() is None


@pytest.mark.parametrize(
    ("run", "last"),
    [
        (_run(), "passed in 1.5 s, 20 tokens, first token after 0.25 s; run 1, 0 failed"),
        (_run(problem="empty content"), "FAILED in 1.5 s, 20 tokens, first token after 0.25 s; run 1, 0 failed"),
    ],
)
def test_a_run_ends_with_a_sum(run: CanaryRun, last: str) -> None:
    assert run.as_lines()[-1] == last


def test_no_step_is_no_pass() -> None:
    assert not _run().model_copy(update={"steps": ()}).passed
