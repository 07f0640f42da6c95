"""A comparison that can be believed: identical is no difference, five per cent slower is found, noise is said."""

from __future__ import annotations

import json
import random
import statistics
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dsv41_serving.bench.alternate import launch_in_turn, order_launches
from dsv41_serving.bench.compare import compare_sets, find_t, headline, judge, list_obstacles, summarise
from dsv41_serving.bench.protocol import choose_target, find_engine_url
from dsv41_serving.bench.report import describe_comparison, write_pages
from dsv41_serving.bench.result import read_result, write_result
from dsv41_serving.check.access import Access
from dsv41_serving.cli import cli
from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts import read_facts
from tests.unit.bench.sets import make_round, make_run, make_set
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dsv41_serving.bench.compare import Difference
    from dsv41_serving.bench.protocol import Target
    from dsv41_serving.bench.result import Launch, ResultSet
    from dsv41_serving.bench.scenario import Scenario

STEP_S = 0.010
TRIALS = 400
# What `bench compare` does unless told otherwise.
LAUNCHES, ROUNDS = 4, 5


def measure(chance: random.Random, slower: float, within: float, between: float) -> ResultSet:
    """Simulate a result set: every launch is off by `between`, every round of it by `within` (standard deviations)."""
    launches = []
    for _ in range(LAUNCHES):
        launch = 1 + chance.gauss(0, between)
        steps = [STEP_S * (1 + slower) * launch * (1 + chance.gauss(0, within)) for _ in range(ROUNDS)]
        launches.append([make_run(rounds=[make_round(step) for step in steps])])
    return make_set(*launches)


def decide(chance: random.Random, slower: float, noise: tuple[float, float]) -> Difference:
    a, b = measure(chance, 0.0, *noise), measure(chance, slower, *noise)
    return next(row for row in compare_sets(a, b) if row.metric == headline(a, "single"))


@pytest.mark.parametrize("noise", [(0.01, 0.003), (0.02, 0.005), (0.02, 0.01)])
def test_identical_configurations_are_no_difference_in_19_of_20(noise: tuple[float, float]) -> None:
    """Whatever the noise, rounds off by up to 2 % and launches by up to 1 %."""
    chance = random.Random(1)  # noqa: S311 - a simulation that repeats
    right = sum(decide(chance, 0.0, noise).judgement == "no difference" for _ in range(TRIALS))
    assert right >= TRIALS * 19 / 20


@pytest.mark.parametrize("noise", [(0.01, 0.003), (0.02, 0.005), (0.02, 0.01)])
def test_a_planted_slow_down_of_5_per_cent_is_found_in_19_of_20(noise: tuple[float, float]) -> None:
    chance = random.Random(2)  # noqa: S311 - a simulation that repeats
    found = sum(decide(chance, 0.05, noise).judgement == "slower" for _ in range(TRIALS))
    assert found >= TRIALS * 19 / 20


def test_a_speed_up_is_found_as_one() -> None:
    chance = random.Random(3)  # noqa: S311 - a simulation that repeats
    assert decide(chance, -0.05, (0.01, 0.003)).judgement == "faster"


def test_more_time_is_slower_and_more_tokens_are_faster() -> None:
    slow = judge("s", "ttft_ms", (10.0, 10.1, 10.0), (12.0, 12.1, 12.0))
    fast = judge("s", "decode_tok_s", (10.0, 10.1, 10.0), (12.0, 12.1, 12.0))
    assert (slow.judgement, fast.judgement) == ("slower", "faster")


def test_the_floor_stands_whatever_the_test_says() -> None:
    """Perfectly repeatable numbers that differ by one per cent."""
    row = judge("s", "itl_ms", (10.0, 10.0), (10.1, 10.1))
    assert (row.judgement, row.noise, row.change) == ("no difference", 0.015, pytest.approx(0.01))
    assert judge("s", "itl_ms", (10.0, 10.0), (10.1, 10.1), floor=0.005).judgement == "slower"


def test_numbers_that_scatter_say_how_much() -> None:
    """Ten per cent cannot be told where launches differ by as much."""
    row = judge("s", "itl_ms", (9.0, 10.0, 11.0), (10.0, 11.0, 12.0))
    spread = find_t(4) * (statistics.variance((9.0, 10.0, 11.0)) * 2 / 3) ** 0.5
    assert row.judgement == "no difference"
    assert row.noise == pytest.approx(spread / 10.0)


def test_too_few_launches_say_how_many_would_do() -> None:
    """As many as a simulation with that spread confirms; nothing where they are enough, or none is."""
    chance = random.Random(6)  # noqa: S311 - a simulation that repeats
    a, b = (9.7, 10.0, 10.3, 10.0), (9.8, 10.2, 10.3, 9.7)
    few = judge("s", "decode_tok_s", a, b)
    assert few.noise > 0.04
    row = judge("s", "decode_tok_s", a[:3], b[:3])
    assert row.needed is not None
    spread = statistics.fmean((statistics.variance(a[:3]), statistics.variance(b[:3]))) ** 0.5
    found = 0
    for _ in range(400):
        fast = [chance.gauss(10, spread) for _ in range(row.needed)]
        slow = [chance.gauss(9.5, spread) for _ in range(row.needed)]
        found += judge("s", "decode_tok_s", fast, slow).judgement == "slower"
    assert found >= 400 * 0.92
    assert judge("s", "itl_ms", (10.0, 10.0), (10.1, 10.1)).needed is None
    assert judge("s", "itl_ms", (1.0, 9.0, 17.0), (1.0, 9.0, 17.0)).needed is None


def test_one_number_on_each_side_tells_nothing() -> None:
    row = judge("s", "itl_ms", (10.0,), (99.0,))
    assert row.judgement == "too few to tell"
    assert row.noise == float("inf")
    assert row.as_json()["noise"] is None
    assert summarise([row]) == ["s: too few to tell (1 and 1 launches); measure more rounds, or launches"]


def test_what_is_shown_is_what_was_judged() -> None:
    """Medians of 128.4 and 106.6 beside a change of means of three per cent would contradict each other."""
    a, b = (100.0, 128.4, 131.0), (104.0, 106.6, 137.7)
    row = judge("s", "ttft_ms", a, b)
    assert (row.a, row.b) == (pytest.approx(statistics.fmean(a)), pytest.approx(statistics.fmean(b)))
    assert row.change == pytest.approx(row.b / row.a - 1)


@pytest.mark.parametrize("level", [0.05, 0.025, 0.00625])
@pytest.mark.parametrize("freedom", [1, 2, 3, 6, 10, 30, 200])
def test_quantiles_are_students(freedom: int, level: float) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed: make env")
    assert find_t(freedom, level) == pytest.approx(stats.t.ppf(1 - level / 2, freedom), rel=1e-5)


def test_several_scenarios_share_one_chance_of_error() -> None:
    """A comparison as a whole is wrong once in twenty times, not each of its rows."""
    chance = random.Random(4)  # noqa: S311 - a simulation that repeats
    names = ("single", "c1", "c16", "long")

    def side() -> ResultSet:
        launches = []
        for _ in range(LAUNCHES):
            factors = {name: 1 + chance.gauss(0, 0.02) for name in names}
            launches.append([make_run(name, [make_round(STEP_S * factor)]) for name, factor in factors.items()])
        return make_set(*launches)

    quiet = 0
    for _ in range(200):
        rows = [row for row in compare_sets(side(), side()) if row.headline]
        assert len(rows) == len(names)
        quiet += all(row.judgement == "no difference" for row in rows)
    assert quiet >= 200 * 19 / 20


def test_one_launch_is_judged_by_its_rounds_and_says_so() -> None:
    """It holds for these two launches, not for the configurations."""
    rounds = [make_round(STEP_S * factor) for factor in (1.0, 1.001, 0.999)]
    slow = [make_round(STEP_S * 1.1 * factor) for factor in (1.0, 1.001, 0.999)]
    a, b = make_set([make_run(rounds=rounds)]), make_set([make_run(rounds=slow)])
    row = next(each for each in compare_sets(a, b) if each.metric == "itl_ms")
    assert (row.judgement, row.within_launch, row.launches) == ("slower", True, (3, 3))
    assert "rounds of one launch" in summarise(compare_sets(a, b))[0]


def test_several_requests_are_judged_by_what_comes_out_in_all() -> None:
    assert headline(make_set([make_run(at_once=16)]), "single") == "output_tok_s"
    assert headline(make_set([make_run(at_once=1)]), "single") == "decode_tok_s"


def test_other_prompts_are_not_compared() -> None:
    a = make_set([make_run(), make_run("c1")])
    b = make_set([make_run(prompts_sha256="00" * 32), make_run("c16")], simulated_acceptance="5.5")
    assert compare_sets(a, b) == []
    assert list_obstacles(a, b) == [
        "single: the prompts differ, so do the answers' lengths or the tokenizer",
        "c1: measured on one side only",
        "c16: measured on one side only",
        "acceptance is simulated differently (real against 5.5)",
    ]


def test_simulated_acceptance_is_never_compared_with_real(tmp_path: Path) -> None:
    """Three times as fast, and not of the same thing: no row, no verdict, no page."""
    a = make_set([make_run(rounds=[make_round(0.01)] * 3)])
    b = make_set([make_run(rounds=[make_round(0.003)] * 3)], simulated_acceptance="5.5")
    assert compare_sets(a, b) == []
    for name, result in (("a", a), ("b", b)):
        write_result(result, tmp_path / f"{name}.json")
    options = [str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, ["bench", "compare", *options])
    assert isinstance(done.exception, InputError)
    assert "cannot be compared: acceptance is simulated differently (real against 5.5)" in str(done.exception)
    assert done.output == ""
    assert list((tmp_path / "out").iterdir()) == []
    markdown, _ = write_pages("ab", describe_comparison(a, b, 0.015))
    assert "> acceptance is simulated differently" in markdown
    assert "faster" not in markdown


# --- launching in turn ----------------------------------------------------------------------------------------------


def test_every_round_runs_in_the_other_direction() -> None:
    """A machine that warms up or slows down favours neither."""
    assert order_launches(2, 4) == [0, 1, 1, 0, 0, 1, 1, 0]


def test_what_was_started_is_stopped_even_when_the_measurement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    def call(options: Sequence[str], verb: Sequence[str], _timeout_s: float) -> None:
        calls.append((options[0], verb[0]))

    def fail(index: int) -> Launch:
        raise GateError(f"configuration {index} does not answer")

    monkeypatch.setattr("dsv41_serving.bench.alternate._call", call)
    with pytest.raises(GateError, match="configuration 0 does not answer"):
        launch_in_turn([["a"], ["b"]], 2, fail, pytest.fail, lambda _: None)
    assert calls == [("a", "up"), ("a", "down")]


def test_what_somebody_else_started_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is refused because the stack runs already, or fails, leaves nothing of its own behind."""
    calls: list[str] = []

    def call(_options: Sequence[str], verb: Sequence[str], _timeout_s: float) -> None:
        calls.append(verb[0])
        raise GateError("the stack is already up")

    monkeypatch.setattr("dsv41_serving.bench.alternate._call", call)
    with pytest.raises(GateError, match="already up"):
        launch_in_turn([["a"], ["b"]], 2, pytest.fail, pytest.fail, lambda _: None)
    assert calls == ["up"]


def test_launches_come_back_by_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41_serving.bench.alternate._call", lambda *_: None)
    launch = make_set([make_run()]).launches[0]
    counted = iter(range(4))
    kept = launch_in_turn(
        [["a"], ["b"]],
        2,
        lambda index: launch.model_copy(update={"started_at": f"{index}/{next(counted)}"}),
        lambda *_: None,
        lambda _: None,
    )
    assert [[each.started_at for each in group] for group in kept] == [["0/0", "0/3"], ["1/1", "1/2"]]


# --- the verb -------------------------------------------------------------------------------------------------------


def store(directory: Path, name: str, step_s: float) -> str:
    launches = [[make_run(rounds=[make_round(step_s * factor) for factor in (1.0, 1.002, 0.998)])] for _ in range(3)]
    path = directory / f"{name}.json"
    write_result(make_set(*launches, label=name), path)
    return str(path)


def test_two_result_sets_are_compared_and_a_slower_one_is_a_failure(tmp_path: Path) -> None:
    fast, slow = store(tmp_path, "fast", 0.01), store(tmp_path, "slow", 0.012)
    done = CliRunner().invoke(cli, ["bench", "compare", fast, slow, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "single: B is slower by 16.7%" in done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.json", "b.json", "report.html", "report.md"}
    back = CliRunner().invoke(cli, ["bench", "compare", slow, fast])
    assert (back.exit_code, "B is faster" in back.output) == (0, True)


def test_the_same_set_twice_is_no_difference(tmp_path: Path) -> None:
    one = store(tmp_path, "one", 0.01)
    done = CliRunner().invoke(cli, ["bench", "compare", one, one, "--json"])
    assert done.exit_code == 0
    assert {row["judgement"] for row in json.loads(done.output)["rows"]} == {"no difference"}


def test_a_result_set_and_a_node_file_are_not_two_of_a_kind(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["bench", "compare", store(tmp_path, "one", 0.01), str(tmp_path / "node.toml")])
    assert "are not two of a kind" in str(done.exception)


def test_two_node_files_are_launched_in_turn_with_the_same_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shorter context of the two decides the prompts; the sets are kept with the report."""
    for name, context in (("long", 8192), ("short", 4096)):
        text = f'profile = "embedded"\n[node]\nstate_dir = "{tmp_path}"\n[engine]\ncontext_length = {context}\n'
        (tmp_path / f"{name}.toml").write_text(text)
    calls: list[str] = []
    monkeypatch.setattr(
        "dsv41_serving.bench.alternate._call", lambda options, verb, _: calls.append(f"{options[1]} {verb[0]}")
    )
    monkeypatch.setattr("dsv41_serving.bench.tokenizer.load_words", lambda _: None)
    prompts = set()

    def measure_instead(loads: Sequence[Scenario], *_: object, rounds: int, **__: object) -> Launch:
        prompts.add(loads[0].turns[0].prompt)
        return make_set([make_run("long", rounds=[make_round()] * rounds)]).launches[0]

    monkeypatch.setattr("dsv41_serving.bench.protocol.measure_launch", measure_instead)
    files = [str(tmp_path / "long.toml"), str(tmp_path / "short.toml")]
    done = CliRunner().invoke(
        cli, ["bench", "compare", *files, "--scenario", "long", "--launches", "2", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert prompts == {4096 - 128 - 8}
    assert [call.rpartition("/")[2] for call in calls] == [
        f"{name}.toml {verb}" for name in ("long", "short", "short", "long") for verb in ("up", "down")
    ]
    assert "long: no difference" in done.output
    first = read_result(tmp_path / "out/a.json")
    assert (first.label, len(first.launches), first.deployment["profile"]) == ("long", 2, "embedded")


def node_file(directory: Path, name: str = "node", *lines: str) -> str:
    path = directory / f"{name}.toml"
    text = f'profile = "embedded"\nshape = "single"\n[node]\nstate_dir = "{directory}"\n'
    path.write_text("\n".join((text, *lines)))
    return str(path)


def test_a_failure_at_the_last_launch_keeps_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven launches of two hours each are not lost with the eighth."""
    monkeypatch.setattr("dsv41_serving.bench.alternate._call", lambda *_: None)
    monkeypatch.setattr("dsv41_serving.bench.tokenizer.load_words", lambda _: None)
    counted = iter(range(8))

    def measure_instead(*_: object, **__: object) -> Launch:
        if next(counted) == 7:
            raise GateError("the engine died")
        return make_set([make_run()]).launches[0]

    monkeypatch.setattr("dsv41_serving.bench.protocol.measure_launch", measure_instead)
    file = node_file(tmp_path)
    options = ["--scenario", "single", "--launches", "4", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, ["bench", "compare", file, file, *options])
    assert isinstance(done.exception, GateError)
    # A B B A A B B A: the eighth is A's.
    kept = [len(read_result(tmp_path / "out" / name).launches) for name in ("a.json", "b.json")]
    assert kept == [3, 4]


@pytest.mark.parametrize(("out", "said"), [([], "kept nowhere"), (["--out", "/proc/compared"], "cannot be written")])
def test_nothing_is_started_when_nothing_can_be_kept(
    out: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv41_serving.bench.alternate._call", pytest.fail)
    file = node_file(tmp_path)
    done = CliRunner().invoke(cli, ["bench", "compare", file, file, *out])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def test_node_files_of_other_acceptance_are_refused_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv41_serving.bench.alternate._call", pytest.fail)
    real = node_file(tmp_path, "real")
    simulated = node_file(tmp_path, "simulated", "[engine.env]", 'SGLANG_SIMULATE_ACC_LEN = "5.5"')
    done = CliRunner().invoke(cli, ["bench", "compare", real, simulated, "--out", str(tmp_path / "out")])
    assert "acceptance is simulated differently (real against 5.5)" in str(done.exception)


def test_one_round_a_side_is_no_answer(tmp_path: Path) -> None:
    """Kept and shown, and not taken for 'no difference' by whoever reads the exit code."""
    for name, step in (("a", 0.01), ("b", 0.02)):
        write_result(make_set([make_run(rounds=[make_round(step)])]), tmp_path / f"{name}.json")
    done = CliRunner().invoke(cli, ["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert isinstance(done.exception, InputError)
    assert "too few to tell" in done.output
    assert "inf" not in done.output


def test_an_engine_can_be_measured_against_its_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same node file twice, one side at the engine itself."""
    file = tmp_path / "node.toml"
    file.write_text(f'profile = "embedded"\nshape = "single"\n[node]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setattr("dsv41_serving.bench.alternate._call", lambda *_: None)
    monkeypatch.setattr("dsv41_serving.bench.tokenizer.load_words", lambda _: None)
    urls: list[str] = []

    def measure_instead(_loads: object, target: Target, *_: object, **__: object) -> Launch:
        urls.append(target.url)
        return make_set([make_run()]).launches[0]

    monkeypatch.setattr("dsv41_serving.bench.protocol.measure_launch", measure_instead)
    options = ["--scenario", "single", "--launches", "2", "--direct", "b", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, ["bench", "compare", str(file), str(file), *options])
    assert done.exit_code == 0, done.output
    assert urls == ["http://127.0.0.1:30001", *["http://127.0.0.1:30100"] * 2, "http://127.0.0.1:30001"]
    sides = [read_result(tmp_path / "out" / name) for name in ("a.json", "b.json")]
    assert [side.label for side in sides] == ["node", "node, engine"]
    assert [side.deployment["through"] for side in sides] == ["router", "engine"]


def test_a_pair_has_no_engine_that_answers_alone() -> None:
    with pytest.raises(InputError, match="prefill and decode answer together, behind a router"):
        find_engine_url(plan_for(read_facts(), "embedded"))


def test_half_of_a_pair_is_not_measured() -> None:
    """Prefill alone hands to nobody: the load generator would fail on it after a minute, in words of its own."""
    plan = plan_for(read_facts(), "embedded")
    for engine in plan.engines:
        with pytest.raises(InputError, match=f"{engine.name} is half of a pair"):
            choose_target(plan, Access(engine.url))
    assert choose_target(plan, Access(plan.router.url)).url == plan.router.url
