"""Every query of every board, asked of a real Prometheus that watches the real stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.probe import Answer, ask_panels, fill_in, queries
from dsv41_serving.dashboards.silent import REASONS, SILENT
from tests.monitoring.observed import SCRAPE_S

if TYPE_CHECKING:
    from tests.monitoring.observed import ObservedStack

RANGE_S = 600
# The exporter fits the step law after ten looks under load, and walks the pages of the engines now and then.
MORE_LOADS = 8


@pytest.fixture(scope="module")
def answers(observed: ObservedStack) -> list[Answer]:
    """What Prometheus says to every query, once everything that has to come has come."""
    for _ in range(MORE_LOADS):
        found = ask_panels(BOARDS, observed.prometheus_url, range_s=RANGE_S, scrape_s=SCRAPE_S)
        if all(answer.alive or answer.where in SILENT for answer in found):
            break
        observed.load(1)
    return found


def test_prometheus_understands_every_query(answers: list[Answer]) -> None:
    assert [f"{answer.where}: {answer.problem}" for answer in answers if answer.problem] == []
    assert len(answers) == len(list(queries(BOARDS)))


def test_every_panel_that_can_have_data_has_data(answers: list[Answer]) -> None:
    dead = [f"{answer.where}: {answer.expr}" for answer in answers if not answer.alive and answer.where not in SILENT]
    assert dead == []


def test_silent_panels_are_silent_for_the_reason_given(answers: list[Answer]) -> None:
    """A panel that answers after all leaves the list, so that the next silence is noticed."""
    answering = [answer.where for answer in answers if answer.alive and answer.where in SILENT]
    assert answering == []


def test_every_silent_query_exists_and_has_a_reason(answers: list[Answer]) -> None:
    assert set(SILENT) <= {answer.where for answer in answers}
    assert set(SILENT.values()) <= set(REASONS)


def test_starts_are_marked_on_the_time_axis(observed: ObservedStack) -> None:
    for board in BOARDS:
        for event in board.annotations:
            expr = fill_in(event.expr, step_s=1, scrape_s=SCRAPE_S, range_s=RANGE_S)
            observed.ask(expr)  # parses
    started = observed.ask("dsv41_service_started_timestamp_seconds")
    assert {row["metric"]["service"] for row in started} == {"prefill", "decode", "router"}


def test_kv_fullness_shows_both_engines(observed: ObservedStack) -> None:
    rows = observed.ask("1 - dsv41:kv_free:ratio")
    shown = {row["metric"]["service"]: float(row["value"][1]) for row in rows if row["metric"]["pool"] == "full"}
    assert set(shown) == {"prefill", "decode"}
    assert all(0 <= fullness < 1 for fullness in shown.values())
