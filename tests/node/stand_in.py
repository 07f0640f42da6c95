#!/usr/bin/python3
"""Stands in for the Grafana server: finds what it was told as Grafana does, and serves on Grafana's port what it found.

Nothing of Grafana is in it. `grafana server --homepath=DIR`
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def look() -> dict[str, object]:
    """Return who runs this, the data sources by name, the boards by uid; try to write where Grafana does."""
    told = {name: Path(os.environ[f"GF_PATHS_{name}"]) for name in ("PROVISIONING", "DATA", "LOGS", "PLUGINS")}
    for name in ("DATA", "LOGS", "PLUGINS"):
        told[name].mkdir(exist_ok=True)
        (told[name] / "written").touch()
    # JSON is YAML, and the plan writes JSON.
    sources = json.loads((told["PROVISIONING"] / "datasources/dsv41.yaml").read_text())["datasources"]
    providers = json.loads((told["PROVISIONING"] / "dashboards/dsv41.yaml").read_text())["providers"]
    files = [file for provider in providers for file in Path(provider["options"]["path"]).glob("*.json")]
    return {
        "uid": os.getuid(),
        "home": sys.argv[2].removeprefix("--homepath="),
        "sources": {source["name"]: source["url"] for source in sources},
        "boards": sorted(json.loads(file.read_text())["uid"] for file in files),
    }


class Page(BaseHTTPRequestHandler):
    """Serves what was found at the start."""

    def do_GET(self) -> None:
        """Answer every path alike."""
        body = json.dumps(FOUND).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    assert sys.argv[1] == "server", sys.argv
    FOUND = look()
    HTTPServer((os.environ["GF_SERVER_HTTP_ADDR"], 3000), Page).serve_forever()
