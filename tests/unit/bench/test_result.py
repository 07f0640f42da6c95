"""What a round means, what the generator wrote, and what is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from click.testing import CliRunner

from dsv41_serving.bench.generator import command_line, parse_output
from dsv41_serving.bench.protocol import choose_target, clear_caches, describe_deployment
from dsv41_serving.bench.result import percentile, read_result, write_result
from dsv41_serving.bench.scenario import choose_scenarios
from dsv41_serving.check.access import Access
from dsv41_serving.cli import cli
from dsv41_serving.cli.output import refuse_unwritable
from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts import read_facts
from tests.unit.bench.sets import make_round, make_run, make_set
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(read_facts(), "embedded")


def test_decode_rate_leaves_prefill_out() -> None:
    """Tokens after the first event over the time from it to the last."""
    values = make_round(0.02, tokens=51, ttft_s=9.0).metrics()
    assert values["decode_tok_s"] == pytest.approx(50.0)
    assert values["ttft_ms"] == pytest.approx(9000.0)
    assert values["itl_ms"] == pytest.approx(20.0)
    assert values["output_tok_s"] == pytest.approx(102 / 10.0)
    assert values["answer_ms"] == pytest.approx(10_000.0)


def test_a_run_is_the_median_of_its_rounds() -> None:
    run = make_run(rounds=[make_round(step) for step in (0.01, 0.02, 0.5)])
    assert run.metrics()["itl_ms"] == pytest.approx(20.0)


def test_a_metric_that_a_round_lacks_is_left_out() -> None:
    run = make_run(rounds=[make_round(), make_round(tokens=1)])
    assert set(run.metrics()) == {"output_tok_s", "ttft_ms", "ttft_p99_ms", "answer_ms"}


@pytest.mark.parametrize(("share", "value"), [(0.99, 99.0), (0.5, 50.0), (1.0, 100.0), (0.001, 1.0)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(1, 101)], share) == value


def output(**changes: Any) -> str:
    values = {
        "duration": 2.0,
        "completed": 1,
        "total_input_tokens": 256,
        "output_lens": [3],
        "ttfts": [0.12345678],
        "itls": [[0.01, 0.02]],
        "errors": [""],
    }
    return "an earlier line\n" + json.dumps({**values, **changes}) + "\n"


def test_the_generators_line_becomes_a_round() -> None:
    (single,) = choose_scenarios(["single"], 8192, 1.0)
    round_ = parse_output(output(), single)
    assert (round_.output_tokens, round_.answers, round_.ttft_s) == (3, (3,), (0.123457,))
    assert round_.itl_s == ((0.01, 0.02),)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"errors": ["Traceback\nValueError: 400"]}, "1 of 1 requests failed: ValueError: 400"),
        ({"errors": [" "]}, "1 of 1 requests failed: no reason was given"),
        ({"output_lens": [0]}, "1 of 1 requests failed"),
        ({"output_lens": []}, "0 of 1 requests"),
    ],
)
def test_a_round_with_a_failed_request_is_no_round(changes: dict[str, Any], said: str) -> None:
    (single,) = choose_scenarios(["single"], 8192, 1.0)
    with pytest.raises(GateError, match=said):
        parse_output(output(**changes), single)


def test_the_command_is_sglangs_own_generator() -> None:
    (load,) = choose_scenarios(["c16"], 8192, 1.0)
    line = command_line(load, url="http://r", model="m", tokenizer="/t", prompts="p.jsonl", output="o.jsonl")
    assert line[1:3] == ["-m", "sglang.benchmark.serving"]
    options = dict(zip(line[3::2], line[4::2], strict=False))
    assert options["--num-prompts"] == "32"
    assert options["--max-concurrency"] == "16"
    assert options["--backend"] == "sglang-oai"


def test_results_survive_a_file(tmp_path: Path) -> None:
    result = make_set([make_run()])
    write_result(result, tmp_path / "deep" / "r.json")
    assert read_result(tmp_path / "deep" / "r.json") == result


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no result set"), ('{"format": 9}', "has format 9, this release reads 1"), ("[]", "is no result set")],
)
def test_another_file_is_no_result_set(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match=said):
        read_result(tmp_path / "r.json")


def cut(**changes: Any) -> str:
    """Return a result set whose only round is changed by hand."""
    values = make_set([make_run()]).model_dump(mode="json")
    run = values["launches"][0]["runs"][0]
    for key, value in changes.items():
        {"launches": values, "runs": values["launches"][0], "rounds": run}.get(key, run["rounds"][0])[key] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (cut(rounds=[]), r"key launches\.0\.runs\.0\.rounds: is no result set: tuple should have at least 1 item"),
        (cut(runs=[]), r"key launches\.0\.runs: is no result set"),
        (cut(launches=[]), r"key launches: is no result set"),
        (cut(duration_s=0.0), r"rounds\.0\.duration_s: is no result set: input should be greater than 0"),
        (
            cut(answers=[3]),
            r"rounds\.0: is no result set: value error, ttft_s, itl_s and answers are not of one length",
        ),
        (json.dumps({"lengths": [], "date": "2026-11-30"}), r"key label: is no result set: field required"),
    ],
)
def test_a_set_that_was_cut_by_hand_is_named_by_its_key(tmp_path: Path, text: str, said: str) -> None:
    """One line instead of a traceback in whatever reads it."""
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_result(tmp_path / "r.json")
    assert "\n" not in str(caught.value)


def test_a_scenario_is_measured_and_kept_once() -> None:
    """Twice in one launch would count as two launches."""
    assert [load.name for load in choose_scenarios(["single", "c1", "single"], 8192, 1.0)] == ["single", "c1"]
    with pytest.raises(ValueError, match="a scenario is there twice"):
        make_set([make_run(), make_run()])


@pytest.mark.parametrize("verb", [("run", "single"), ("scaling",), ("handoff",), ("soak",)], ids=" ".join)
def test_a_result_that_cannot_be_kept_is_not_measured(verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41_serving.check.access.find_access", lambda *_: pytest.fail("it went on to measure"))
    done = CliRunner().invoke(cli, ["--profile", "embedded", "bench", *verb, "--out", "/proc/x.json"])
    assert isinstance(done.exception, InputError)
    assert "/proc/x.json: cannot be written" in str(done.exception)


def test_a_check_for_room_on_the_disk_leaves_no_file(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "deep" / "r.json")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize("verb", ["handoff", "scaling"])
def test_a_prompt_beyond_the_context_is_refused(verb: str, tmp_path: Path) -> None:
    options = ["--prompt", "1000000", "--out", str(tmp_path / "r.json")]
    done = CliRunner().invoke(cli, ["--profile", "embedded", "bench", verb, *options])
    assert isinstance(done.exception, InputError)
    assert "--prompt: 1,000,000 tokens and an answer of" in str(done.exception)
    assert "do not fit into the context of 8,192" in str(done.exception)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: does not exist"):
        read_result(tmp_path / "absent.json")


def test_simulated_acceptance_is_labelled(plan: Plan) -> None:
    """A number made with it says so, for ever."""
    target = choose_target(plan, Access(plan.router.url))
    assert describe_deployment(plan, target, (), 1.0)["simulated_acceptance"] == ""
    services = tuple(
        service.model_copy(update={"env": {**service.env, "SGLANG_SIMULATE_ACC_LEN": "5.5"}})
        for service in plan.services
    )
    simulated = plan.model_copy(update={"services": services})
    described = describe_deployment(simulated, target, ("a=b",), 1.0)
    assert described["simulated_acceptance"] == "5.5"
    assert described["through"] == "router"
    assert described["plan_sha256"] != describe_deployment(plan, target, (), 1.0)["plan_sha256"]


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
def test_the_policy_of_the_router_is_in_the_result(policy: str) -> None:
    """Not of an engine that is measured without it."""
    plan = plan_for(read_facts(), "embedded", f"router.policy={policy}", 'shape="single"')
    through = [
        describe_deployment(plan, choose_target(plan, Access(url)), (), 1.0)["router_policy"]
        for url in (plan.router.url, plan.engines[0].url)
    ]
    assert through == [policy, ""]


def test_a_key_reaches_the_generator_by_its_environment(plan: Plan) -> None:
    """Never by its command line, which everybody may read."""
    target = choose_target(plan, Access(plan.router.url, "secret", "/etc/cert.pem"))
    assert target.env == {"OPENAI_API_KEY": "secret", "SSL_CERT_FILE": "/etc/cert.pem"}
    assert choose_target(plan, Access(plan.router.url)).env == {}


def test_a_cache_that_stays_full_ends_the_measurement(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def post(url: str, timeout: float) -> httpx.Response:
        assert timeout > 0
        asked.append(url)
        return httpx.Response(200 if "30100" in url else 400, request=httpx.Request("POST", url))

    monkeypatch.setattr(httpx, "post", post)
    with pytest.raises(GateError, match="the cache cannot be cleared") as caught:
        clear_caches(choose_target(plan, Access(plan.router.url)))
    assert "\n" not in str(caught.value)
    assert asked == ["http://127.0.0.1:30100/flush_cache", "http://127.0.0.1:30200/flush_cache"]
