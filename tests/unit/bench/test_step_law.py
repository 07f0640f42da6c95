"""The step law finds the line that was planted, and says what its slope means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dsv41_serving.bench.step_law import Point, explain, fit_law, list_levels, list_loads, read_laws
from dsv41_serving.cli import cli
from dsv41_serving.errors import InputError
from tests.unit.bench.sets import make_round, make_run, make_set

if TYPE_CHECKING:
    from pathlib import Path


def points(a: float, b: float) -> list[Point]:
    return [Point(level, a + b * level) for level in (1, 2, 4, 8, 16)]


def test_a_planted_line_is_found() -> None:
    law = fit_law(256, points(0.008, 0.0005))
    assert (law.a_s, law.b_s, law.r2) == (pytest.approx(0.008), pytest.approx(0.0005), pytest.approx(1.0))
    assert law.doubling == pytest.approx(16.0)
    assert law.at(10) == pytest.approx(0.013)


def test_scatter_lowers_the_share_that_is_explained() -> None:
    bent = [Point(1, 0.010), Point(2, 0.020), Point(4, 0.010), Point(8, 0.020)]
    assert 0 < fit_law(256, bent).r2 < 0.5


def test_a_line_needs_two_concurrencies() -> None:
    with pytest.raises(ValueError, match="two concurrencies"):
        fit_law(256, [Point(4, 0.01), Point(4, 0.02)])


@pytest.mark.parametrize(
    ("short", "long", "said"),
    [
        ((0.008, 0.0005), (0.008, 0.0030), "b grows 6.0-fold from 256 to 8192 tokens"),
        ((0.008, 0.0020), (0.009, 0.0021), "points to work over the longest possible context"),
        ((0.008, 0.00001), (0.008, 0.00002), "requests are nearly free at both lengths"),
    ],
)
def test_the_slope_over_context_is_the_diagnosis(
    short: tuple[float, float], long: tuple[float, float], said: str
) -> None:
    laws = [fit_law(256, points(*short)), fit_law(8192, points(*long))]
    lines = explain(laws)
    assert len(lines) == 3
    assert said in lines[-1]
    assert lines[0].startswith("after 256 tokens: step = 8.00 ms + ")


def test_points_that_are_no_line_say_nothing_of_context() -> None:
    """Half of the steps are off by half; where requests are nearly free, R2 is low and nothing is wrong."""
    bent = [Point(1, 0.010), Point(2, 0.030), Point(4, 0.010), Point(8, 0.030)]
    first, *others = explain([fit_law(64, bent), fit_law(512, bent)])
    assert first.startswith("no law can be read: steps lie 4")
    assert [line.partition(" tokens")[0] for line in others] == ["after 64", "after 512"]
    flat = [Point(1, 0.0100), Point(2, 0.0101), Point(4, 0.0099), Point(8, 0.0100)]
    assert explain([fit_law(64, flat), fit_law(512, flat)])[-1].startswith("requests are nearly free")


def test_a_step_that_does_not_grow_says_so() -> None:
    (line,) = explain([fit_law(64, points(0.01, 0.0))])
    assert "does not grow with requests" in line


def test_levels_end_at_the_cap() -> None:
    assert list_levels(64, 16) == [1, 2, 4, 8, 16]
    assert list_levels(4, 16) == [1, 2, 4]


def test_loads_hold_every_request_beside_all_others() -> None:
    loads = list_loads([64, 1024], [1, 4], 24)
    assert [(load.name, load.at_once, len(load.turns)) for load in loads] == [
        ("step-64-1", 1, 1),
        ("step-64-4", 4, 4),
        ("step-1024-1", 1, 1),
        ("step-1024-4", 4, 4),
    ]
    assert {turn.answer for load in loads for turn in load.turns} == {24}


def test_laws_are_read_from_a_result_set() -> None:
    """One for each prompt length with three concurrencies; other scenarios do not disturb."""
    runs = [
        make_run(f"step-{prompt}-{level}", [make_round(0.008 + slope * level)])
        for prompt, slope in ((64, 0.0005), (1024, 0.001))
        for level in (1, 2, 4)
    ]
    laws = read_laws(make_set([*runs, make_run("single"), make_run("step-9-1")]))
    assert [(law.prompt, round(law.b_s, 6)) for law in laws] == [(64, 0.0005), (1024, 0.001)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--longest", "3"), "--longest: 3 leaves levels of 1 and 2 at once, too few for a line; at least 4"),
        (("--longest", "1"), "--longest: 1 leaves levels of 1 at once"),
        ((), "max_running_requests of the engine that decodes: 2 leaves levels of 1 and 2 at once"),
    ],
)
def test_what_cannot_become_a_line_is_not_measured(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    cap = () if options else ("--set", "engines.decode.max_running_requests=2")
    done = CliRunner().invoke(
        cli, ["--profile", "embedded", *cap, "bench", "scaling", *options, "--out", str(tmp_path / "law.json")]
    )
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
