"""The page about the boards says what the boards are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.silent import REASONS, SILENT

PAGE = Path(__file__).parents[3] / "monitoring" / "dashboards" / "README.md"


def _rows(mark: str) -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]


def test_every_board_is_listed_with_its_number_of_panels() -> None:
    listed = dict(re.findall(r"^\| `(dsv41-\w+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {board.uid: str(len(board.panels)) for board in BOARDS}


def test_the_seventeen_subjects_lead_to_panels_of_the_main_board() -> None:
    rows = _rows("subjects")
    assert len(rows) == 17
    assert len({subject for subject, _ in rows}) == 17
    assert {title for _, title in rows} <= {panel.title for panel in BOARDS[0].panels}


def test_silent_queries_are_listed_with_their_reason() -> None:
    listed = [tuple(cell.strip("`") for cell in row) for row in _rows("silent")]
    assert listed == [(*where, REASONS[reason]) for where, reason in SILENT.items()]


def test_times_are_those_of_the_result_file() -> None:
    result = json.loads((PAGE.parents[2] / "deploy/results/board-queries.json").read_text(encoding="utf-8"))
    slowest, median = (figure["value"] for figure in result["figures"])
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"the slowest of {result['queries']} queries takes {slowest * 1000:.0f} ms" in text
    assert f"the median {median * 1000:.0f} ms" in text
    assert f"({result['history']['series']} series" in text
    assert slowest < 0.2


def test_pictures_exist() -> None:
    pictures = re.findall(r"\(\.\./(screenshots/[\w.-]+)\)", PAGE.read_text(encoding="utf-8"))
    assert pictures
    assert [name for name in pictures if not (PAGE.parents[1] / name).is_file()] == []
