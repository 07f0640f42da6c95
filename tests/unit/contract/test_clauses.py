"""Every clause is kept by a sound deployment and turns red when what it promises is broken."""

from __future__ import annotations

import asyncio

import pytest

from dsv41_serving.contract.clauses import CLAUSES, output, wire
from dsv41_serving.contract.suite import all_kept, choose, run_clauses
from dsv41_serving.spec.model import Contract
from tests.unit.contract.fake_deployment import FakeDeployment, as_deployment

APIS = ("messages-api", "responses-api")
BREAKS = [
    ("router-old-name", "model-listed"),
    ("engine-path", "model-listed"),
    ("chunk-name", "model-answers"),
    ("thinking-default-off", "thinking-default"),
    ("tags-in-content", "thinking-on"),
    ("thinking-off-ignored", "thinking-off"),
    ("thinking-config-ignored", "thinking-config"),
    ("effort-refused", "effort-levels"),
    ("effort-none-thinks", "effort-levels"),
    ("effort-nonsense", "effort-levels"),
    ("effort-old-table", "effort-rendered"),
    ("other-encoder", "encoding"),
    ("temperature-openai", "temperature-default"),
    ("top-p-openai", "sampling-seeded"),
    ("temperature-openai", "sampling-seeded"),
    ("completion-limit-ignored", "max-tokens"),
    ("markup-in-auto", "tools-auto"),
    ("required-ignored", "tools-required"),
    ("named-ignored", "tools-named"),
    ("stops-thinking", "tools-thinking"),
    ("none-renders-tools", "tools-none"),
    ("one-call", "tools-parallel"),
    ("parser-off", "tools-parallel"),
    ("arguments-short", "tools-stream"),
    ("parser-off", "tools-stream"),
    ("text-lost", "tools-text"),
    ("parser-off", "tools-text"),
    ("result-dropped", "tools-result"),
    ("schema-ignored", "json-schema"),
    ("stop-kept", "stop"),
    ("logprobs-short", "logprobs"),
    ("usage-off", "usage"),
    ("usage-unasked", "usage"),
    ("no-cache-report", "cached-tokens"),
    ("n-hangs", "choices"),
    ("n-one", "choices"),
    ("stream-short", "stream-equals-whole"),
    ("any-model", "error-model"),
    ("engine-any-model", "error-model"),
    ("flat-errors", "error-model"),
    ("prompt-cut", "error-length"),
    ("json-500", "error-json"),
    ("schema-unchecked", "error-tool-schema"),
    ("images-dropped", "error-image"),
    ("stream-error-200", "error-stream"),
    *((fault, clause) for fault in ("apis-any-model", "apis-never-think", "apis-other-name") for clause in APIS),
    ("kv-leak", "disconnect"),
    ("streams-die", "disconnect"),
    ("router-drops-field", "router-keeps-fields"),
    ("router-other-prompt", "router-keeps-fields"),
    ("engine-differs", "engines-agree"),
]


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never happens need not be waited for."""
    monkeypatch.setattr(output, "CHOICES_LIMIT_S", 2.0)
    monkeypatch.setattr(wire, "FREED_WITHIN_S", 0.2)
    monkeypatch.setattr(wire, "HELD_WITHIN_S", 2.0)
    monkeypatch.setattr(wire, "POLL_S", 0.01)


def outcomes(fake: FakeDeployment, *names: str, own: bool = True) -> dict[str, tuple[str, str]]:
    results = asyncio.run(run_clauses(as_deployment(fake, own=own), choose(names)))
    return {result.clause.name: (result.outcome.verdict, result.outcome.seen) for result in results}


@pytest.mark.parametrize(
    "contract", [Contract(), Contract(thinking=False, stream_usage=True, aliases=["v41"])], ids=["default", "other"]
)
def test_sound_deployment_keeps_every_clause(contract: Contract) -> None:
    seen = outcomes(FakeDeployment(contract=contract))
    assert {name: outcome for name, outcome in seen.items() if outcome[0] != "pass"} == {}
    assert len(seen) == len(CLAUSES)


@pytest.mark.parametrize(("fault", "clause"), BREAKS)
def test_broken_promise_turns_its_clause_red(fault: str, clause: str) -> None:
    verdict, seen = outcomes(FakeDeployment(fault), clause)[clause]
    assert verdict == "MISS", seen


def test_every_clause_is_broken_once() -> None:
    assert {clause for _, clause in BREAKS} == {clause.name for clause in CLAUSES}


def test_stream_that_ended_by_itself_is_no_word_on_leaving() -> None:
    _, seen = outcomes(FakeDeployment("streams-die"), "disconnect")["disconnect"]
    assert seen.startswith("the stream ended before it could be left: ")
    assert "no hand-off" in seen


def test_stream_is_held_until_its_kv_is_seen() -> None:
    """The engine tells what it holds a while later; lines collected meanwhile must not close the connection."""
    fake = FakeDeployment("tells-late")
    verdict, seen = outcomes(fake, "disconnect")["disconnect"]
    assert (verdict, seen.split(" before")[0]) == ("pass", "decode: 1 aborted; 0, 40, 0 KV tokens")


def test_stale_router_is_named_with_the_command_that_mends_it() -> None:
    _, seen = outcomes(FakeDeployment("router-old-name"), "model-listed")["model-listed"]
    assert "router lists another name" in seen
    assert "systemctl restart dsv41-router" in seen


def test_wrong_engine_is_not_blamed_on_the_router() -> None:
    _, seen = outcomes(FakeDeployment("engine-path"), "model-listed")["model-listed"]
    assert "decode lists another name" in seen
    assert "systemctl" not in seen


def test_what_a_foreign_server_cannot_do_is_a_skip_and_a_miss_in_our_own() -> None:
    class Unseeded(FakeDeployment):
        count = 0

        def _answer(self, body):
            self.count += 1
            return f"Sampled {self.count}." if "seed" in body else super()._answer(body)

        def _write(self, body):
            return super()._write({key: value for key, value in body.items() if key != "ebnf"})

    asked = ("sampling-seeded", "tools-parallel")
    seen = outcomes(Unseeded(), *asked, own=False)
    assert seen["sampling-seeded"] == ("skip", "seeds are not honoured: the same seed gave two texts")
    assert seen["tools-parallel"][0] == "skip"
    assert {verdict for verdict, _ in outcomes(Unseeded(), *asked).values()} == {"MISS"}


def test_a_required_call_with_thinking_may_be_refused_with_a_reason() -> None:
    """As smg does for names of DeepSeek's models."""
    assert outcomes(FakeDeployment("no-forced-thinking"), "tools-thinking")["tools-thinking"][0] == "pass"
    assert (
        outcomes(FakeDeployment("no-forced-thinking", "flat-errors"), "tools-thinking")["tools-thinking"][0] == "MISS"
    )


def test_apis_that_are_not_served_and_seeds_that_cannot_be_are_skips() -> None:
    """Which is the case with sglang-router, and with speculative decoding."""
    seen = outcomes(FakeDeployment("chat-only", "speculates"), *APIS, "sampling-seeded")
    assert seen == {
        "messages-api": ("skip", "not served here: /v1/messages is 404"),
        "responses-api": ("skip", "not served here: /v1/responses is 404"),
        "sampling-seeded": ("skip", "speculative decoding draws without seeds"),
    }


def test_half_of_a_pair_is_asked_only_what_it_can_answer() -> None:
    deployment = as_deployment(FakeDeployment(), front="prefill")
    results = asyncio.run(run_clauses(deployment, CLAUSES))
    verdicts = {result.clause.name: result.outcome.verdict for result in results}
    assert "MISS" not in verdicts.values()
    assert verdicts["encoding"] == verdicts["error-model"] == verdicts["engines-agree"] == "pass"
    assert verdicts["thinking-default"] == verdicts["router-keeps-fields"] == "skip"
    assert all_kept(results)


def test_nothing_proven_is_not_kept() -> None:
    results = asyncio.run(run_clauses(as_deployment(FakeDeployment(), front="prefill"), choose(["thinking-on"])))
    assert [result.outcome.verdict for result in results] == ["skip"]
    assert not all_kept(results)
