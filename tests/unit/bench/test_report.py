"""One page, two spellings: what is in the Markdown is in the HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from dsv41_serving.bench.plot import Series, choose_ticks, draw_chart
from dsv41_serving.bench.report import Block, describe_comparison, describe_set, write_pages
from dsv41_serving.bench.result import write_result
from dsv41_serving.cli import cli
from tests.unit.bench.sets import make_round, make_run, make_set

if TYPE_CHECKING:
    from pathlib import Path


class Reader(HTMLParser):
    """Collects text and checks that every element is closed in order."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> str:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return " ".join(" ".join(reader.text).split())


def test_both_spellings_hold_the_same_numbers() -> None:
    result = make_set([make_run(rounds=[make_round(0.0125)]), make_run("c16", at_once=16)])
    markdown, html = write_pages("embedded", describe_set(result))
    text = read(html)
    for expected in ("12.5", "80", "abc1234", "single: one request", "2 (16 at once)", "0.5.23"):
        assert expected in text
        assert expected in markdown
    assert html.count("<svg") == 4
    assert markdown.startswith("# embedded\n")


def test_the_share_of_the_roofline_is_floor_over_step() -> None:
    """Unknown bandwidth, no share."""
    known = make_set([make_run(rounds=[make_round(0.01)], floor_ms=2.5)])
    markdown, _ = write_pages("x", describe_set(known))
    assert "| 25% |" in markdown
    markdown, _ = write_pages("x", describe_set(make_set([make_run()])))
    assert "| - |" in markdown


def test_simulated_acceptance_is_said_first() -> None:
    markdown, html = write_pages("x", describe_set(make_set([make_run()], simulated_acceptance="5.5")))
    note = "Acceptance was simulated (5.5 tokens a step): speed only, the text means nothing."
    assert f"> {note}" in markdown
    assert note in read(html)


def test_a_comparison_of_two_simulated_sets_says_so_too() -> None:
    sides = [make_set([make_run()], simulated_acceptance="5.5") for _ in range(2)]
    markdown, _ = write_pages("x", describe_comparison(sides[0], sides[1], 0.015))
    assert "> A: Acceptance was simulated" in markdown
    assert "> B: Acceptance was simulated" in markdown


def test_a_router_that_remembers_prompts_is_said() -> None:
    """Its tree survives what clears the caches of the engines."""
    remembers = make_set([make_run()], router_policy="cache_aware")
    for blocks in (describe_set(remembers), describe_comparison(make_set([make_run()]), remembers, 0.015)):
        markdown, _ = write_pages("x", blocks)
        assert "cannot be cleared between rounds" in markdown
    markdown, _ = write_pages("x", describe_set(make_set([make_run()], router_policy="round_robin")))
    assert "cannot be cleared" not in markdown


def test_the_step_law_is_drawn_and_explained() -> None:
    runs = [make_run(f"step-64-{level}", [make_round(0.008 + 0.001 * level)]) for level in (1, 2, 4)]
    markdown, html = write_pages("law", describe_set(make_set(runs)))
    assert "step = 8.00 ms + 1.000 ms x requests" in markdown
    assert html.count("<circle") == 3
    assert "## Medians" not in markdown


def test_a_comparison_states_its_verdicts_and_its_noise() -> None:
    def launches(step: float) -> list[list[object]]:
        return [[make_run(rounds=[make_round(step * factor)])] for factor in (1.0, 1.001, 0.999)]

    a, b = make_set(*launches(0.01), label="stock"), make_set(*launches(0.012), label="kernels")  # type: ignore[arg-type]
    markdown, html = write_pages("ab", describe_comparison(a, b, 0.015))
    assert "single: B is slower by 16.7% (noise 1.5%, 3 and 3 launches)" in markdown
    assert "one calls a difference by chance" in read(html)
    assert "A: stock" in html
    assert "Launches are compared; A and B are means over launches" in markdown


def test_what_was_compared_is_named() -> None:
    """One launch a side: rounds were, and no launches."""
    rounds = [make_round(0.01 * factor) for factor in (1.0, 1.01, 0.99)]
    markdown, _ = write_pages(
        "ab", describe_comparison(make_set([make_run(rounds=rounds)]), make_set([make_run(rounds=rounds)]), 0.015)
    )
    assert "One launch a side: its rounds are compared" in markdown
    assert "Launches are compared" not in markdown


def test_the_tail_of_the_first_token_is_in_tables_and_pictures() -> None:
    """Ten requests of 0.1 s and one of 9 s: medians hide it, the p99 and the curve do not. In both spellings."""
    slow = make_round(0.01, requests=11)
    slow = slow.model_copy(update={"ttft_s": (*slow.ttft_s[:10], 9.0)})
    result = make_set([make_run("c16", [slow], at_once=16)])
    assert result.runs_of("c16")[0].metrics()["ttft_p99_ms"] == pytest.approx(9000.0)
    markdown, html = write_pages("set", describe_set(result))
    head, row = next(block.rows for block in describe_set(result) if block.kind == "table")
    assert (row[head.index("first token, ms")], row[head.index("first token p99, ms")]) == ("100", "9,000")
    curve = "| c16: time to the first token | count | p10, ms | p50, ms | p90, ms | p99, ms | longest, ms |"
    assert curve in markdown
    assert "| here | 11 | 100 | 100 | 100 | 9,000 | 9,000 |" in markdown
    assert "c16: time to the first token" in read(html)
    compared, _ = write_pages("ab", describe_comparison(result, result, 0.015))
    assert curve in compared
    assert "| c16 | first token p99, ms | 9,000 | 9,000 |" in compared


def test_text_is_escaped_and_tables_keep_their_columns() -> None:
    blocks = [Block("table", rows=(("a", "b"), ("x | y", "`<script>`")))]
    markdown, html = write_pages("<t>", blocks)
    assert "| x \\| y | `<script>` |" in markdown
    assert "<code>&lt;script&gt;</code>" in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [(10, [0, 2, 4, 6, 8, 10]), (0.9, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (64, [0, 20, 40, 60, 80]), (0, [0, 1])],
)
def test_ticks_are_round_numbers(highest: float, ticks: list[float]) -> None:
    assert choose_ticks(highest) == pytest.approx(ticks)


def test_a_chart_is_a_picture_with_its_points_inside() -> None:
    svg = draw_chart("t & u", "x", "y", [Series("s", ((0.0, 0.0), (10.0, 5.0)), dots=True)])
    root = ET.fromstring(svg)  # noqa: S314 - our own text
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f".//{space}circle")
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert len(circles) == 2
    assert all(0 <= float(c.attrib["cx"]) <= width and 0 <= float(c.attrib["cy"]) <= height for c in circles)
    assert float(circles[0].attrib["cy"]) > float(circles[1].attrib["cy"])
    assert len(root.findall(f".//{space}polyline")) == 1


def test_an_empty_chart_is_still_a_picture() -> None:
    assert ET.fromstring(draw_chart("nothing", "x", "y", [])) is not None  # noqa: S314 - our own text


def test_the_verb_writes_both_files(tmp_path: Path) -> None:
    write_result(make_set([make_run()], label="embedded pair"), tmp_path / "r.json")
    done = CliRunner().invoke(cli, ["bench", "report", str(tmp_path / "r.json"), "--out", str(tmp_path / "page")])
    assert done.exit_code == 0
    assert re.match(r"# embedded pair\n", (tmp_path / "page/report.md").read_text(encoding="utf-8"))
    assert "<h1>embedded pair</h1>" in (tmp_path / "page/report.html").read_text(encoding="utf-8")


def test_scaled_lengths_are_told_as_they_were_sent() -> None:
    """What a scenario says of itself are its lengths at scale 1. Two requests: 100 tokens in, 11 out each."""
    runs = [make_run(rounds=[make_round(0.0125)])]
    blocks = describe_set(make_set(runs, scale=0.25))
    head, row = next(block.rows for block in blocks if block.kind == "table")
    assert row[head.index("tokens in + out")] == "50 + 11"
    assert "Lengths are 0.25 times those of the scenarios." in blocks[0].text
    assert "Lengths" not in describe_set(make_set(runs))[0].text


def test_charts_that_follow_each_other_stand_side_by_side() -> None:
    charts = [Block("chart", draw_chart(name, "x", "y", [])) for name in ("one", "two", "three")]
    _, html = write_pages("page", [*charts[:2], Block("heading", "next"), charts[2]])
    rows = html.split('<div class="charts">')[1:]
    assert [row.count("<svg") for row in rows] == [2, 1]
    assert read(html)
