"""A service that answers as an engine or as the router does, run as a program: `python fake_service.py SETTINGS_AS_JSON`.

Faults that the real ones do not produce on demand are settings. Only the standard library, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

DEFAULTS: dict[str, Any] = {
    "model": "deepseek-v4.1-flash",
    "contract": None,  # what an engine reports at /contract
    "lines": [],  # logged before anything else
    "noise": 0,  # bytes logged as one line first
    "tail": "",  # logged last, without a newline
    "exit": None,  # end with this status after the lines
    "hang": False,  # do nothing after the lines
    "serving": "INFO:     Application startup complete.",
    "chatty": False,  # log every request, as SGLang does
    "engines": [],  # base URLs of the engines behind a router
    "state": None,  # file whose JSON overrides settings while it runs
    "healthy": True,  # runs a forward pass
    "alive": True,  # answers /health
    "running": 0,
    "page": "",  # in place of the metrics
    "finish_reason": "stop",
    "deaf": False,  # ignore SIGTERM
    "worker": False,  # fork a process that does not end by itself
    "longest": None,  # refuse prompts of more ids
    "crash_at": None,  # end at a prompt of so many ids
    "busy_flushes": 0,  # refuse so many times to empty the prefix cache
}


class Handler(BaseHTTPRequestHandler):
    """The few paths that a gate, a drain and a status ask for."""

    settings: dict[str, Any]
    tokens = 0
    lock = Lock()

    def do_GET(self) -> None:
        """Answer a probe."""
        now = {**self.settings, **_read_state(self.settings)}
        if self.path == "/v1/models":
            self._reply(200, json.dumps({"data": [{"id": now["model"]}]}))
        elif self.path == "/contract":
            self._reply(200 if now["contract"] else 404, json.dumps(now["contract"]))
        elif self.path == "/metrics":
            self._reply(200, now["page"] or _page(now["running"], Handler.tokens))
        else:
            fine = now["alive"] if self.path == "/health" else now["healthy"]
            self._reply(200 if fine else 503, "ok")

    def do_POST(self) -> None:
        """Answer a completion, after the engines behind have counted it."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path in {"/generate", "/flush_cache"}:
            self._warm_up(json.loads(body or b"{}"))
            return
        with Handler.lock:
            Handler.tokens += 5
        for engine in self.settings["engines"]:
            urllib.request.urlopen(f"{engine}/count", data=b"").read()  # noqa: S310 - the test's own ports
        now = {**self.settings, **_read_state(self.settings)}
        answer = {
            "model": now["model"],
            "choices": [{"message": {"content": "Paris."}, "finish_reason": now["finish_reason"]}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 5},
        }
        self._reply(200, json.dumps(answer))

    def _warm_up(self, body: dict[str, Any]) -> None:
        ids = body.get("input_ids", [])
        if ids and len(ids) == self.settings["crash_at"]:
            os._exit(3)
        with Handler.lock:
            busy = self.path == "/flush_cache" and self.settings["busy_flushes"] > 0
            self.settings["busy_flushes"] -= busy
        refused = busy or len(ids) > (self.settings["longest"] or len(ids))
        _log(f"{self.path} {len(ids)} {body.get('bootstrap_room')} {max(ids, default=0)} {min(ids[:1], default=0)}\n")
        self._reply(400 if refused else 200, "too long" if refused else "{}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log a request where the settings ask for it."""
        if self.settings["chatty"]:
            _log(f"{format % args}\n")

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())


def _log(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _read_state(settings: dict[str, Any]) -> dict[str, Any]:
    path = settings["state"]
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


def _page(running: int, tokens: int) -> str:
    samples = {
        "num_running_reqs": running,
        "num_queue_reqs": 0,
        "kv_used_tokens": 7 * running,
        "max_total_num_tokens": 700,
        "prompt_tokens_total": tokens,
        "generation_tokens_total": tokens,
        "kv_transfer_total_mb_sum": tokens / 10,
    }
    return "".join(f'sglang:{name}{{tp_rank="0"}} {value}\n' for name, value in samples.items())


def main(settings: dict[str, Any]) -> None:
    """Log, then end, hang or serve as `settings` say."""
    if settings["deaf"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while settings["worker"] and os.fork() == 0:
        time.sleep(300)
    if settings["noise"]:
        _log(f"{'x' * settings['noise']}\n")
    for line in settings["lines"]:
        _log(f"{line}\n")
    _log(settings["tail"])
    if settings["exit"] is not None:
        sys.exit(settings["exit"])
    while settings["hang"]:
        time.sleep(60)
    Handler.settings = settings
    server = ThreadingHTTPServer(("127.0.0.1", settings["port"]), Handler)
    _log(f"{settings['serving']}\n")
    server.serve_forever()


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1])})
