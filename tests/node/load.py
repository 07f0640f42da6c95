"""Send conversations to a router until a file appears, one more each, then print what became of all. Runs on a node: standard library only.

python3 load.py PORT STOP_FILE CLIENTS [KEY]
"""

# ruff: noqa: T201 - this is a command
from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

BODY = json.dumps(
    {
        "model": "deepseek-v4.1-flash",
        "messages": [{"role": "user", "content": "Name three fruits."}],
        "max_tokens": 60,
        "chat_template_kwargs": {"thinking": False},
    }
).encode()


def main() -> None:
    """Run the clients; print a JSON list of {started, seconds, outcome}, started in Unix seconds."""
    port, stop, clients = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    key = {"authorization": f"Bearer {sys.argv[4]}"} if sys.argv[4:] else {}
    results = []

    def client() -> None:
        last = False
        while not last:
            last = stop.exists()
            started = time.time()
            outcome = converse(f"http://127.0.0.1:{port}/v1/chat/completions", key)
            results.append({"started": started, "seconds": time.time() - started, "outcome": outcome})
            if outcome != "ok":
                time.sleep(0.5)  # a client that was refused comes back, but not at once

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(results))


def converse(url: str, key: dict[str, str]) -> str:
    """Return 'ok' for an answer with words in it, else what went wrong."""
    request = urllib.request.Request(url, BODY, {"content-type": "application/json", **key})  # noqa: S310 - the address of a router
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310
            message = json.load(reply)["choices"][0]["message"]
            return "ok" if message["content"] else "empty answer"
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__


if __name__ == "__main__":
    main()
