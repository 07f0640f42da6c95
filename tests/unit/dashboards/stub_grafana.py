"""The few answers of Grafana's HTTP API that pushing boards needs. A stub: it stores JSON and counts versions, nothing more."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "glsa_stub"  # noqa: S105 - opens nothing but the stub


class StubGrafana:
    """What the stub holds, and every request that changed it."""

    def __init__(self) -> None:
        self.url = ""
        self.folders: dict[str, dict[str, Any]] = {}
        self.boards: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body for one request."""
        match method, path.removeprefix("/api").strip("/").split("/"):
            case "GET", ["folders", uid] if uid in self.folders:
                return 200, self.folders[uid]
            case "POST", ["folders"]:
                self.writes.append(path)
                self.folders[body["uid"]] = body
                return 200, body
            case "GET", ["dashboards", "uid", uid] if uid in self.boards:
                return 200, {"dashboard": self.boards[uid], "meta": {"folderUid": "dsv41"}}
            case "POST", ["dashboards", "db"] if body.get("folderUid") in self.folders:
                self.writes.append(path)
                uid = body["dashboard"]["uid"]
                number = self.boards.get(uid, {}).get("version", 0) + 1
                self.boards[uid] = {**body["dashboard"], "id": len(self.boards) + 1, "version": number}
                return 200, {"uid": uid, "status": "success", "version": number}
        return 404, {"message": f"there is no {method} {path}"}


@contextmanager
def serve_grafana() -> Iterator[StubGrafana]:
    """Serve a stub on a free port of loopback."""
    stub = StubGrafana()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            allowed = self.headers.get("authorization") == f"Bearer {TOKEN}"
            answer = stub.answer(self.command, self.path, body) if allowed else (401, {"message": "Unauthorized"})
            text = json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _answer  # noqa: N815 - the names http.server asks for

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
