"""A stand-in for Prometheus that answers every query alike, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakePrometheus:
    """Answers with one series, with none to queries that `empty` names, with an error where `refused` stands in the query."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.empty: set[str] = set()
        self.refused = "no query says this"
        self.value = "1"

    def answer(self, path: str, params: dict[str, str]) -> dict[str, Any]:
        """Return the body for one request."""
        self.asked.append((path, params))
        if self.refused in params["query"]:
            return {"status": "error", "error": "parse error: not today"}
        if params["query"] in self.empty:
            return {"status": "success", "data": {"result": []}}
        sample = [1.0, self.value]
        return {"status": "success", "data": {"result": [{"metric": {}, "value": sample, "values": [sample]}]}}


@contextmanager
def serve_prometheus() -> Iterator[FakePrometheus]:
    """Serve a fake on a free port of loopback."""
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            text = json.dumps(fake.answer(url.path, {k: v[0] for k, v in parse_qs(url.query).items()})).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
