"""Provisioning of a Grafana server on this node: data sources, folder, boards. Pure text.

The files lie below /etc/dsv41/grafana; a Grafana that is told so (`GF_PATHS_PROVISIONING`) reads them at its start.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsv41_serving.plan.model import RenderedFile
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from dsv41_serving.spec.monitoring import Monitoring

GRAFANA_DIR = "/etc/dsv41/grafana"
BOARDS_DIR = f"{GRAFANA_DIR}/boards"
FOLDER = "DeepSeek-V4.1"
FOLDER_UID = "dsv41"
RELOAD_S = 60
_RUNBOOK = "${runbook:raw}"


def grafana_files(monitoring: Monitoring) -> tuple[RenderedFile, ...]:
    """Return the provisioning files and every board with this node's runbook."""
    provisioning = f"{GRAFANA_DIR}/provisioning"
    return (
        RenderedFile(path=f"{provisioning}/datasources/dsv41.yaml", text=_to_text(datasources(monitoring))),
        RenderedFile(path=f"{provisioning}/dashboards/dsv41.yaml", text=_to_text(providers())),
        *(
            RenderedFile(path=f"{BOARDS_DIR}/{name}.json", text=_to_text(board))
            for name, board in boards(monitoring.runbook_url).items()
        ),
    )


def datasources(monitoring: Monitoring) -> dict[str, Any]:
    """Return the node's Prometheus, and its Alertmanager, whose alerts Grafana then lists and silences."""
    common = {"access": "proxy", "editable": False}
    return {
        "apiVersion": 1,
        "datasources": [
            {
                **common,
                "name": "dsv41 Prometheus",
                "uid": "dsv41-prometheus",
                "type": "prometheus",
                "url": f"http://127.0.0.1:{monitoring.prometheus_port}",
                "isDefault": True,
                # Grafana derives $__rate_interval from it.
                "jsonData": {
                    "timeInterval": f"{monitoring.scrape_interval_s}s",
                    "httpMethod": "POST",
                    "manageAlerts": True,
                    "alertmanagerUid": "dsv41-alertmanager",
                },
            },
            {
                **common,
                "name": "dsv41 Alertmanager",
                "uid": "dsv41-alertmanager",
                "type": "alertmanager",
                "url": f"http://127.0.0.1:{monitoring.alertmanager_port}",
                "jsonData": {"implementation": "prometheus"},
            },
        ],
    }


def providers() -> dict[str, Any]:
    """Return where Grafana finds the boards and which folder they are shown in."""
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "dsv41",
                "type": "file",
                "folder": FOLDER,
                "folderUid": FOLDER_UID,
                "disableDeletion": True,
                "allowUiUpdates": False,
                "updateIntervalSeconds": RELOAD_S,
                "options": {"path": BOARDS_DIR},
            }
        ],
    }


def boards(runbook_url: str) -> dict[str, dict[str, Any]]:
    """Return every committed board by name, its links leading to the runbook at `runbook_url`.

    Without an address there is nowhere to go: the links are left out rather than dead.
    """
    found = {}
    for path in sorted((data_dir("monitoring") / "dashboards").glob("*.json")):
        board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for variable in board["templating"]["list"]:
            if variable["name"] == "runbook":
                variable["query"] = runbook_url
        if not runbook_url:
            for holder in (board, *board["panels"]):
                if "links" in holder:
                    holder["links"] = [link for link in holder["links"] if _RUNBOOK not in link.get("url", "")]
        found[path.stem] = board
    return found


def _to_text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
