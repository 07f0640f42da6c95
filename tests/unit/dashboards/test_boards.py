"""Every board is reproduced byte by byte from its rows, and every panel says what it is for."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.build import dashboard_json
from dsv41_serving.dashboards.panel import GRID_WIDTH, Board, Panel

COMMITTED = Path(__file__).parents[3] / "monitoring" / "dashboards"
by_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
by_panel = pytest.mark.parametrize(
    "panel", [panel for board in BOARDS for panel in board.panels], ids=lambda panel: panel.title
)


def _committed(board: Board) -> dict[str, Any]:
    return json.loads((COMMITTED / f"{board.uid}.json").read_text(encoding="utf-8"))


@by_board
def test_committed_json_is_what_the_rows_make(board: Board) -> None:
    committed = (COMMITTED / f"{board.uid}.json").read_text(encoding="utf-8")
    assert committed == dashboard_json(board), "run `python -m dsv41_serving.dashboards` and commit what it writes"


def test_there_is_no_file_without_a_board() -> None:
    assert {path.stem for path in COMMITTED.glob("*.json")} == {board.uid for board in BOARDS}


@by_board
def test_panels_do_not_overlap_and_stay_on_the_grid(board: Board) -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in _committed(board)["panels"]]
    for title, place in places:
        assert place["x"] + place["w"] <= GRID_WIDTH, title
    for (one, a), (other, b) in itertools.combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, f"{one} overlaps {other}"


@by_board
def test_lines_of_panels_leave_no_hole(board: Board) -> None:
    covered = sum(place["w"] * place["h"] for place in (panel["gridPos"] for panel in _committed(board)["panels"]))
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in _committed(board)["panels"])
    assert covered == GRID_WIDTH * bottom


@by_board
def test_titles_and_ids_are_unique(board: Board) -> None:
    panels = _committed(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel.title for panel in board.panels}) == len(board.panels)


@by_board
def test_every_query_asks_the_chosen_data_source_about_the_chosen_node(board: Board) -> None:
    made = _committed(board)
    for panel in made["panels"]:
        for target in panel.get("targets", []):
            assert panel["datasource"] == target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            selectors = re.findall(r"\{([^}]*)\}", target["expr"])
            assert selectors, target["expr"]
            assert all('node=~"$node"' in selector for selector in selectors), target["expr"]
    assert [variable["name"] for variable in made["templating"]["list"]] == ["datasource", "node", "runbook"]


@by_board
def test_releases_and_restarts_are_marked(board: Board) -> None:
    assert [mark["name"] for mark in _committed(board)["annotations"]["list"]] == ["Release", "Restart"]


@by_panel
def test_panel_answers_a_question(panel: Panel) -> None:
    assert panel.question.endswith("?")
    assert panel.unit
    assert panel.queries
    assert all(query.legend for query in panel.queries)


@by_panel
def test_thresholds_ascend(panel: Panel) -> None:
    values = [step.value for step in panel.steps]
    assert values == sorted(set(values))


@by_board
def test_description_units_thresholds_and_links_reach_the_json(board: Board) -> None:
    made = {panel["title"]: panel for panel in _committed(board)["panels"] if panel["type"] != "row"}
    for panel in board.panels:
        written = made[panel.title]
        defaults = written["fieldConfig"]["defaults"]
        assert written["description"].startswith(panel.question)
        assert defaults["unit"] == panel.unit
        assert defaults["thresholds"]["steps"][1:] == [
            {"color": step.color, "value": step.value} for step in panel.steps
        ]
        assert [link["url"] for link in written.get("links", [])] == [
            f"${{runbook:raw}}#{alert.lower()}" for alert in panel.alerts
        ]


@by_panel
def test_a_threshold_near_zero_does_not_lie_under_a_flat_line(panel: Panel) -> None:
    """Grafana draws an axis to 100 when nothing moves: a limit of one would look as if it were reached."""
    if panel.kind == "lines" and panel.steps and panel.bounds[1] is None and panel.unit == "short":
        assert panel.reach is not None
    if panel.reach is not None:
        made = next(each for board in BOARDS for each in _committed(board)["panels"] if each["title"] == panel.title)
        assert made["fieldConfig"]["defaults"]["custom"]["axisSoftMax"] == panel.reach


def test_what_fires_stands_on_the_first_screen() -> None:
    """And says so when nothing does: an empty panel could also be a broken one."""
    alerts = next(panel for panel in BOARDS[0].rows[0].panels if panel.title == "Alerts")
    (query,) = alerts.queries
    assert 'alertstate="firing"' in query.expr
    assert '"nothing fires"' in query.expr


def test_kv_fullness_is_what_one_sees_first() -> None:
    first = BOARDS[0].panels[0]
    assert first.title == "KV fullness"
    assert first.width == max(panel.width for panel in BOARDS[0].rows[0].panels)
