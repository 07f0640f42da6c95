"""Start the router of the plan with its own arguments, without what its launcher imports on top, and with its key from a file.

`sglang_router.launch_router` also loads a Python test balancer and with it all of SGLang and torch: 900 MB and five seconds
for a router written in Rust. The classes used here are the ones that the launchers use. Their --api-key would stand in
/proc/PID/cmdline for every user of the machine to read; here the key goes from the file into the router's memory.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any

from dsv41_serving.credential import API_KEY, TLS_KEY, find_credential, read_key
from dsv41_serving.errors import Dsv41Error

PACKAGES = {"sglang-router": "sglang_router", "smg": "smg"}


def make_parser(kind: str) -> argparse.ArgumentParser:
    """Return the own parser of the router `kind` with one flag more."""
    parser = argparse.ArgumentParser(prog=kind)
    parser.add_argument("--api-key-file", help="File with the key that clients must send.")
    _settings_type(kind).add_cli_args(parser, use_router_prefix=False)
    return parser


def parse_args(kind: str, argv: list[str]) -> Any:
    """Return the settings in `argv` with the secrets it names put in. Raises InputError when one cannot be read."""
    parsed = make_parser(kind).parse_args(argv)
    settings = _settings_type(kind).from_cli_args(parsed, use_router_prefix=False)
    if parsed.api_key_file:
        settings.api_key = read_key(find_credential(API_KEY, parsed.api_key_file))
    if settings.server_key_path:
        settings.server_key_path = str(find_credential(TLS_KEY, settings.server_key_path))
    return settings


def main(kind: str, *argv: str) -> None:
    """Serve until SIGTERM."""
    try:
        settings = parse_args(kind, list(argv))
    except Dsv41Error as error:
        sys.exit(f"Error: {error}")
    import_module(f"{PACKAGES[kind]}.router").Router.from_args(settings).start()


def _settings_type(kind: str) -> Any:
    return import_module(f"{PACKAGES[kind]}.router_args").RouterArgs


if __name__ == "__main__":
    main(*sys.argv[1:])
