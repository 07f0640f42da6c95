"""Boards reach a Grafana elsewhere, once. Against a stub of its HTTP API, not against Grafana."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dsv41_serving.cli import cli
from dsv41_serving.dashboards.push import push_boards
from dsv41_serving.errors import InputError
from tests.unit.dashboards.stub_grafana import TOKEN, StubGrafana, serve_grafana

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ["dsv41-main", "dsv41-node", "dsv41-slo"]


@pytest.fixture
def grafana() -> Iterator[StubGrafana]:
    with serve_grafana() as stub:
        yield stub


def _push(grafana: StubGrafana, *, dry_run: bool = False) -> dict[str, str]:
    changes = push_boards(grafana.url, TOKEN, runbook_url="", message="test", dry_run=dry_run)
    return {change.name: change.what for change in changes}


def test_first_push_creates_folder_and_boards(grafana: StubGrafana) -> None:
    assert _push(grafana) == dict.fromkeys(NAMES, "created")
    assert grafana.folders["dsv41"]["title"] == "DeepSeek-V4.1"
    assert sorted(grafana.boards) == NAMES
    assert grafana.boards["dsv41-main"]["panels"][1]["title"] == "KV fullness"


def test_second_push_changes_nothing(grafana: StubGrafana) -> None:
    _push(grafana)
    before = list(grafana.writes)
    assert _push(grafana) == dict.fromkeys(NAMES, "unchanged")
    assert grafana.writes == before


def test_a_board_somebody_edited_is_put_right(grafana: StubGrafana) -> None:
    _push(grafana)
    grafana.boards["dsv41-node"]["panels"][1]["title"] = "Edited by hand"
    assert _push(grafana) == {**dict.fromkeys(NAMES, "unchanged"), "dsv41-node": "changed"}
    assert grafana.boards["dsv41-node"]["panels"][1]["title"] == "GPUs now"
    assert grafana.boards["dsv41-node"]["version"] == 2


def test_dry_run_shows_the_difference_and_writes_nothing(grafana: StubGrafana, tmp_path: Path) -> None:
    _push(grafana)
    grafana.boards["dsv41-slo"]["title"] = "Edited by hand"
    before = list(grafana.writes)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    options = ["--grafana", grafana.url, "--token-file", str(tmp_path / "token"), "--dry-run"]
    done = CliRunner().invoke(cli, ["--profile", "embedded", "dashboards", "push", *options])
    assert done.exit_code == 0, done.output
    assert '- "title": "Edited by hand",' in done.output
    assert "would be changed: dsv41-slo" in done.output
    assert "unchanged: dsv41-main" in done.output
    assert grafana.writes == before


def test_dry_run_on_an_empty_grafana_writes_nothing(grafana: StubGrafana) -> None:
    assert _push(grafana, dry_run=True) == dict.fromkeys(NAMES, "created")
    assert grafana.writes == []


def test_a_refused_token_is_one_line_with_the_remedy(grafana: StubGrafana) -> None:
    with pytest.raises(InputError, match="refuses the token; name a file with another: --token-file"):
        push_boards(grafana.url, "wrong", runbook_url="", message="test")


def test_nobody_at_the_address_is_one_line() -> None:
    with pytest.raises(InputError, match="no Grafana answers"):
        push_boards("http://127.0.0.1:9", TOKEN, runbook_url="", message="test")
