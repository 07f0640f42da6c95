"""Bring the boards to a Grafana elsewhere through its HTTP API: look, compare, change only what differs."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grafana_client import GrafanaApi
from grafana_client.client import GrafanaClientError, GrafanaException, GrafanaUnauthorizedError
from niquests.exceptions import RequestException

from dsv41_serving.errors import InputError
from dsv41_serving.plan.grafana import FOLDER, FOLDER_UID, boards

if TYPE_CHECKING:
    from collections.abc import Iterator

# Grafana counts these up by itself; they say nothing about what is shown.
OWN_KEYS = ("id", "version")
NOT_FOUND = 404


@dataclass(frozen=True)
class Change:
    """What became of one board, or would with a real run."""

    name: str
    what: Literal["created", "changed", "unchanged"]
    diff: str
    """Unified, from what Grafana shows to what this release has; '' when they agree."""


def push_boards(url: str, token: str, *, runbook_url: str, message: str, dry_run: bool = False) -> list[Change]:
    """Make the Grafana at `url` show this release's boards in their folder; a second run changes nothing.

    `message` is kept in the history of each board. With `dry_run` nothing is written. Raises InputError when Grafana does not
    answer, refuses the token, or refuses a board.
    """
    grafana = GrafanaApi.from_url(url, credential=token or None)
    try:
        if not dry_run:
            _ensure_folder(grafana)
        return list(_push_each(grafana, runbook_url, message, dry_run=dry_run))
    except GrafanaUnauthorizedError as error:
        raise InputError(
            "Grafana refuses the token", where=url, remedy="name a file with another: --token-file"
        ) from error
    except GrafanaException as error:
        raise InputError(
            f"Grafana refuses: {error.message}", where=url, remedy="give the token the role Editor"
        ) from error
    except (RequestException, OSError) as error:
        raise InputError(f"no Grafana answers ({error})", where=url, remedy="check the address") from error


def _ensure_folder(grafana: GrafanaApi) -> None:
    try:
        grafana.folder.get_folder(FOLDER_UID)
    except GrafanaClientError as error:
        if error.status_code != NOT_FOUND:
            raise
        grafana.folder.create_folder(FOLDER, uid=FOLDER_UID)


def _push_each(grafana: GrafanaApi, runbook_url: str, message: str, *, dry_run: bool) -> Iterator[Change]:
    for name, board in boards(runbook_url).items():
        there = _fetch(grafana, board["uid"])
        diff = _compare(name, there, board)
        if diff and not dry_run:
            grafana.dashboard.update_dashboard(
                {"dashboard": {**board, "id": None}, "folderUid": FOLDER_UID, "message": message, "overwrite": True}
            )
        yield Change(name, "created" if there is None else "changed" if diff else "unchanged", diff)


def _fetch(grafana: GrafanaApi, uid: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = grafana.dashboard.get_dashboard(uid)["dashboard"]
    except GrafanaClientError as error:
        if error.status_code != NOT_FOUND:
            raise
        return None
    return found


def _compare(name: str, there: dict[str, Any] | None, here: dict[str, Any]) -> str:
    names = (f"{name} (Grafana)", f"{name} (this release)")
    return "\n".join(difflib.unified_diff(_lines(there), _lines(here), *names, lineterm=""))


def _lines(board: dict[str, Any] | None) -> list[str]:
    if board is None:
        return []
    shown = {key: value for key, value in board.items() if key not in OWN_KEYS}
    return json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
