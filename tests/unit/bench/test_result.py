"""What a round means, what the generator wrote, and what is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from dsv41_serving.bench.generator import command_line, parse_output
from dsv41_serving.bench.protocol import choose_target, clear_caches, describe_deployment
from dsv41_serving.bench.result import percentile, read_result, write_result
from dsv41_serving.bench.scenario import choose_scenarios
from dsv41_serving.check.access import Access
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


def test_a_run_is_the_median_of_its_rounds() -> None:
    run = make_run(rounds=[make_round(step) for step in (0.01, 0.02, 0.5)])
    assert run.metrics()["itl_ms"] == pytest.approx(20.0)


def test_a_metric_that_a_round_lacks_is_left_out() -> None:
    run = make_run(rounds=[make_round(), make_round(tokens=1)])
    assert set(run.metrics()) == {"output_tok_s", "ttft_ms"}


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
    with pytest.raises(GateError, match="the cache cannot be cleared"):
        clear_caches(choose_target(plan, Access(plan.router.url)))
    assert asked == ["http://127.0.0.1:30100/flush_cache", "http://127.0.0.1:30200/flush_cache"]
