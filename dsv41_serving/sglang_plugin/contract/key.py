"""The key that an engine off loopback asks for: from its file into SGLang's memory, past command line, environment and log.

SGLang 0.5.23 writes its arguments into its log, --api-key included, before it begins to serve.
"""

from __future__ import annotations

import os

from dsv41_serving.credential import API_KEY, find_credential, read_key

VARIABLE = "DSV41_API_KEY_FILE"
"""Set by the plan where engines listen off loopback: the file with the key."""


def find_key() -> str:
    """Return the key this engine shall ask for; '' for none. Raises InputError when its file cannot be read."""
    file = os.environ.get(VARIABLE, "")
    return read_key(find_credential(API_KEY, file)) if file else ""


def ask_for_key(key: str) -> None:
    """Let SGLang ask for `key` everywhere but at /health, /ready and /metrics; called before it builds its application."""
    from sglang.srt.runtime_context import get_context  # noqa: PLC0415 - with the server, not with the plug-in

    get_context().override("dsv41_contract", api_key=key)
