"""Write the JSON of every board: `python -m dsv41_serving.dashboards [DIRECTORY]`."""

from __future__ import annotations

import sys
from pathlib import Path

from dsv41_serving.dashboards import BOARDS
from dsv41_serving.dashboards.build import dashboard_json


def main(arguments: list[str]) -> None:
    """Write the files below the directory named on the command line, monitoring/dashboards/ when none is."""
    directory = Path(arguments[0] if arguments else "monitoring/dashboards")
    directory.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        path = directory / f"{board.uid}.json"
        path.write_text(dashboard_json(board), encoding="utf-8")
        sys.stdout.write(f"{path}: {len(board.panels)} panels\n")


if __name__ == "__main__":
    main(sys.argv[1:])
