"""The contract on the real stack: every clause through the router, every golden encoding on both engines, and real faults."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from dsv41_serving.bench.router_fields import ROUTERS, probe
from dsv41_serving.contract import goldens
from dsv41_serving.contract.encoder import Encoding
from dsv41_serving.resources import data_dir
from dsv41_serving.spec import load_spec
from tests.engine.stack import MODEL, PORTS, START_TIMEOUT_S, StackUnderTest, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dsv41_serving.spec.model import RouterKind

NO_PEER = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}
TOKENS_PER_ROUND = 200


def verdicts(clauses: dict[str, dict[str, Any]], verdict: str) -> dict[str, str]:
    """Return what was seen of every clause with `verdict`."""
    return {name: row["seen"] for name, row in clauses.items() if row["verdict"] == verdict}


def test_every_clause_is_kept_through_the_router(stack: StackUnderTest, tmp_path: Path) -> None:
    """All of them: none is skipped."""
    file = tmp_path / "contract.xml"
    code, clauses = stack.check_contract("--junit", str(file))
    assert (verdicts(clauses, "miss"), verdicts(clauses, "skip")) == ({}, {})
    assert code == 0
    assert 'name="model-listed"' in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("service", ["prefill", "decode"])
def test_each_engine_keeps_what_it_can_be_asked_alone(stack: StackUnderTest, service: str) -> None:
    url = f"http://127.0.0.1:{PORTS[f'engines.{service}.port']}"
    code, clauses = stack.check_contract("--url", url)
    assert code == 0, [row for row in clauses.values() if row["verdict"] == "miss"]
    proven = {name for name, row in clauses.items() if row["verdict"] == "pass"}
    assert {"model-listed", "encoding", "effort-rendered", "engines-agree", "error-model"} <= proven


@pytest.fixture(scope="module")
def encoder() -> Any:
    return goldens.embedded_encoder()


@pytest.mark.parametrize("case", goldens.read_goldens(), ids=lambda case: case.name)
def test_prefill_encodes_as_the_golden_file_says(stack: StackUnderTest, encoder: Any, case: goldens.Golden) -> None:
    """The chat path itself: the prompt ids that go into the model."""
    assert stack.record("prefill").alive
    body = {"model": MODEL, **case.request, "max_tokens": 1, "return_prompt_token_ids": True, **NO_PEER}
    response = httpx.post(_url("prefill", "/v1/chat/completions"), json=body, timeout=120)
    if case.refused or case.images:
        assert response.status_code == 400
        assert response.json()["error"]["message"]
        return
    assert response.status_code == 200, response.text
    ids = tuple(response.json()["choices"][0]["prompt_token_ids"])
    assert goldens.compare(case, Encoding(encoder.decode(ids), ids), encoder.spell, by="prefill") == []


@pytest.mark.parametrize(
    "case", [case for case in goldens.read_goldens() if not (case.refused or case.images)], ids=lambda case: case.name
)
def test_decode_encodes_as_the_golden_file_says(stack: StackUnderTest, encoder: Any, case: goldens.Golden) -> None:
    assert stack.record("decode").alive
    response = httpx.post(_url("decode", "/tokenize"), json={"model": MODEL, **case.request}, timeout=120)
    ids = tuple(response.json()["tokens"])
    assert goldens.compare(case, Encoding(encoder.decode(ids), ids), encoder.spell, by="decode") == []


@pytest.mark.parametrize("kind", ROUTERS)
def test_what_a_router_does_to_fields_is_as_recorded(stack: StackUnderTest, kind: RouterKind) -> None:
    """All of them again; a router that starts to pass, drop or refuse another field shows here."""
    file = data_dir("deploy") / "contract" / "router-fields.json"
    record = json.loads(file.read_text(encoding="utf-8"))["routers"][kind]
    settings = [f"{key}={value}" for key, value in PORTS.items()]
    overrides = (*settings, f'node.state_dir="{stack.state_dir}"')
    found = asyncio.run(probe(load_spec(profile="embedded", overrides=overrides), kind))
    for api in ("chat", "completions"):
        assert {label: row["outcome"] for label, row in found[api].items()} == {
            label: row["outcome"] for label, row in record[api].items()
        }
    assert (found["version"], found["paths"], found["added"]) == (record["version"], record["paths"], record["added"])


def test_watch_keeps_a_baseline_and_sees_an_edited_sampling_file(stack: StackUnderTest) -> None:
    first = json.loads(stack.run("contract", "watch", "--once", "--json").stdout)
    assert first["kept"], first
    assert 0 < first["generated_tokens"] < TOKENS_PER_ROUND
    assert {f"worker {_url(name)} in the router" for name in ("prefill", "decode")} <= set(first["fingerprint"])
    file = stack.state_dir / "served" / "smollm2-v41" / "generation_config.json"
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text("{}", encoding="utf-8")
        done = stack.run("contract", "watch", "--once")
        assert done.returncode == 1
        assert "DRIFT generation config was" in done.stdout
    finally:
        file.write_text(text, encoding="utf-8")
    assert stack.run("contract", "watch", "--once").returncode == 0
    assert "dsv41_contract_drifted_items 0.0" in (stack.state_dir / "contract" / "contract.prom").read_text(
        encoding="utf-8"
    )


class TestOtherRouter:
    """The same engines behind sglang-router 0.3.2."""

    @pytest.fixture(scope="class")
    def other(self, node: StackUnderTest) -> Iterator[StackUnderTest]:
        node.down()
        other = StackUnderTest(node.state_dir, [*node.overrides, 'router.kind="sglang-router"'])
        other.up()
        yield other
        other.down()

    def test_it_loses_one_spelling_of_thinking_and_serves_chats_alone(self, other: StackUnderTest) -> None:
        code, clauses = other.check_contract()
        assert verdicts(clauses, "miss") == {
            "thinking-config": "enabled: reasoning, disabled: reasoning; 'disabled' is ignored"
        }
        assert set(verdicts(clauses, "skip")) == {"messages-api", "responses-api"}
        assert code == 1


class TestFaults:
    """The suite of a sound plan against a stack that was started from another one."""

    OTHER = ('contract.served_model_name="old-name"', "contract.thinking=false", "contract.temperature=1.0")

    @pytest.fixture(scope="class")
    def other(self, node: StackUnderTest) -> Iterator[StackUnderTest]:
        """Give the sound plan of a stack that runs with another table."""
        node.down()
        wrong = StackUnderTest(node.state_dir, [*node.overrides, *self.OTHER])
        wrong.up()
        yield node
        wrong.down()

    def test_each_wrong_setting_turns_its_clause_red(self, other: StackUnderTest) -> None:
        code, clauses = other.check_contract("model-listed", "error-model", "engines-agree")
        assert code == 1
        assert {name for name, row in clauses.items() if row["verdict"] == "miss"} >= {"model-listed", "engines-agree"}
        assert "prefill has temperature = 1.0, the plan 0.6" in clauses["engines-agree"]["seen"]
        assert "prefill runs with thinking = False, the plan says True" in clauses["engines-agree"]["seen"]

    def test_thinking_and_temperature_are_seen_in_the_answers(self, other: StackUnderTest) -> None:
        """Asked by the name that is served, so that only the behaviour differs."""
        named = StackUnderTest(other.state_dir, [*other.overrides, self.OTHER[0]])
        _, clauses = named.check_contract("thinking-default", "temperature-default", "thinking-on")
        assert clauses["thinking-default"]["verdict"] == "miss"
        assert clauses["temperature-default"]["verdict"] == "miss"
        assert clauses["thinking-on"]["verdict"] == "pass"


class TestOneWrongEngine:
    """A pair of which one half runs with another name."""

    @pytest.fixture(scope="class")
    def pair(self, node: StackUnderTest) -> Iterator[StackUnderTest]:
        """Start prefill from the sound plan and decode from the other."""
        node.down()
        wrong = StackUnderTest(node.state_dir, [*node.overrides, TestFaults.OTHER[0]])
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [node.spawn("run", "prefill", **quiet), wrong.spawn("run", "decode", **quiet)]
        try:
            for name in ("prefill", "decode"):
                wait_until(lambda name=name: self.is_ready(node, name), START_TIMEOUT_S, f"{name} is ready")
            yield node
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(60)

    @staticmethod
    def is_ready(node: StackUnderTest, name: str) -> bool:
        try:
            record = node.record(name)
        except FileNotFoundError:
            return False
        return record.state == "ready" and record.alive

    @pytest.mark.parametrize(("service", "code"), [("prefill", 0), ("decode", 1)])
    def test_the_clauses_of_the_name_are_red_there_alone(self, pair: StackUnderTest, service: str, code: int) -> None:
        names = ("model-listed", "engines-agree")
        found, clauses = pair.check_contract("--url", _url(service), *names)
        assert found == code
        assert {row["verdict"] for row in clauses.values()} == {"miss" if code else "pass"}, clauses


def _url(service: str, path: str = "") -> str:
    return f"http://127.0.0.1:{PORTS[f'engines.{service}.port']}{path}"
