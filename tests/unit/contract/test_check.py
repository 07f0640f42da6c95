"""The verb: which deployment is meant, where the key comes from, and what is printed."""

from __future__ import annotations

import asyncio
from xml.etree import ElementTree as ET

import httpx
import pytest
from click.testing import CliRunner

from dsv41_serving.check.access import find_access
from dsv41_serving.cli import cli
from dsv41_serving.contract import report
from dsv41_serving.contract.check import Checked
from dsv41_serving.contract.clauses import CLAUSES
from dsv41_serving.contract.deployment import Deployment, of_plan, of_url, open_client
from dsv41_serving.contract.reply import is_openai_error, paths, read_stream
from dsv41_serving.contract.suite import choose, run_clauses
from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_facts
from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.spec import load_spec
from dsv41_serving.spec.model import Contract
from tests.unit.contract.fake_deployment import FakeDeployment, as_deployment


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(load_spec(profile="embedded"), read_facts(), Installation(python="python"))


def run(fake: FakeDeployment, *names: str) -> Checked:
    deployment = as_deployment(fake)
    results = asyncio.run(run_clauses(deployment, choose(names)))
    return Checked(deployment.front.url, tuple(results), 1.5, deployment.generated_tokens)


def at(url: str, transport: httpx.AsyncBaseTransport) -> Deployment:
    return asyncio.run(of_url(url, httpx.AsyncClient(transport=transport), Contract()))


def test_router_of_the_plan_is_judged_with_its_engines_behind_it(plan: Plan) -> None:
    found = of_plan(plan, open_client(find_access(plan)))
    assert found is not None
    assert (found.front.name, found.front.kind, found.own) == ("router", "router", True)
    assert [engine.name for engine in found.engines] == ["prefill", "decode"]
    assert found.contract == plan.contract


def test_engine_of_the_plan_is_judged_alone(plan: Plan) -> None:
    found = of_plan(plan, open_client(find_access(plan)), f"{plan.service('prefill').url}/")
    assert found is not None
    assert [engine.name for engine in found.engines] == ["prefill"]
    assert not found.answers


def test_address_outside_the_plan_is_none_of_its_servers(plan: Plan) -> None:
    assert of_plan(plan, open_client(find_access(plan)), "http://elsewhere:8000") is None


@pytest.mark.parametrize(
    ("role", "kind", "answers"),
    [("null", "aggregated", True), ("prefill", "prefill", False), ("decode", "decode", False)],
)
def test_sglang_elsewhere_says_what_it_is(role: str, kind: str, answers: bool) -> None:  # noqa: FBT001
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"disaggregation_mode": role}))
    found = at("http://elsewhere/v1", transport)
    assert (found.front.url, found.front.kind, found.answers) == ("http://elsewhere", kind, answers)
    assert found.engines == (found.front,)
    assert not found.own


def test_other_servers_have_no_engine_to_ask() -> None:
    found = at("http://elsewhere", httpx.MockTransport(lambda _: httpx.Response(404)))
    assert (found.front.kind, found.answers, found.engines) == ("unknown", True, ())


def test_nobody_at_the_address_is_one_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(InputError, match=r"http://elsewhere: nothing answers \(ConnectError\); start it"):
        at("http://elsewhere", httpx.MockTransport(refuse))


def test_unknown_clause_is_refused_with_the_names() -> None:
    with pytest.raises(InputError, match=r"no clause 'thinking'; use one of: model-listed, .*engines-agree"):
        choose(["thinking"])


def test_list_says_what_each_clause_promises() -> None:
    done = CliRunner().invoke(cli, ["contract", "check", "--list"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()] == [clause.name for clause in CLAUSES]
    assert all(len(line.split()) > 4 for line in done.output.splitlines())


def test_line_of_a_miss_has_expected_and_seen() -> None:
    done = run(FakeDeployment("required-ignored"), "tools-required", "json-schema")
    miss, kept = (report.as_line(result) for result in done.results)
    assert miss.startswith("MISS  tools-required ")
    assert "expected a valid call, finish_reason tool_calls; seen content" in miss
    assert kept.startswith("pass  json-schema ")
    assert report.summary_line(done).startswith("1 passed, 1 missed, 0 skipped at http://router in 1.5 s, ")


def test_json_holds_every_clause() -> None:
    done = report.as_json(run(FakeDeployment("any-model"), "error-model", "stop"))
    assert [(row["clause"], row["verdict"]) for row in done["clauses"]] == [("error-model", "miss"), ("stop", "pass")]
    assert done["generated_tokens"] > 0


def test_junit_counts_and_survives_control_characters() -> None:
    fake = FakeDeployment("required-ignored")
    fake._answer = lambda _body: "control \x00 character"  # type: ignore[method-assign]
    done = run(fake, "tools-required", "tools-none")
    suite = ET.fromstring(report.as_junit(done))  # noqa: S314 - written two lines above
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    failure = suite.find("testcase[@name='tools-required']/failure")
    assert failure is not None
    assert "expected a valid call" in (failure.text or "")


def test_broken_stream_is_no_answer() -> None:
    async def lines():
        yield "data: {'error': 'not JSON'}"

    with pytest.raises(Exception, match="not a chunk"):
        asyncio.run(read_stream(lines()))


def test_paths_of_nested_json() -> None:
    assert paths({"a": [{"b": 1}, {"c": {"d": 2}}], "e": []}) == {"a", "a.b", "a.c", "a.c.d", "e"}


@pytest.mark.parametrize(
    ("body", "shaped"),
    [
        ({"error": {"message": "m", "type": "t"}}, True),
        ({"error": {"message": "", "type": "t"}}, False),
        ({"error": "m"}, False),
        ({"object": "error", "message": "m"}, False),
        ([], False),
    ],
)
def test_form_of_an_error(body: object, shaped: bool) -> None:  # noqa: FBT001
    assert is_openai_error(body) is shaped
