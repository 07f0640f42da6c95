"""Start sglang-router with its own arguments, without what its launcher imports on top, and with its key from a file.

`sglang_router.launch_router` also loads the Python test balancer and with it all of SGLang and torch: 900 MB and five seconds
for a router written in Rust. The classes used here are the ones that launcher uses. Its --api-key would stand in
/proc/PID/cmdline for every user of the machine to read; here the key goes from the file into the router's memory.
"""

from __future__ import annotations

import argparse
import sys

from sglang_router.router import Router
from sglang_router.router_args import RouterArgs

from dsv41_serving.credential import API_KEY, TLS_KEY, find_credential, read_key
from dsv41_serving.errors import Dsv41Error


def make_parser() -> argparse.ArgumentParser:
    """Return sglang-router's own parser with one flag more."""
    parser = argparse.ArgumentParser(prog="launch_router", description="sglang-router 0.3.2")
    parser.add_argument("--api-key-file", help="File with the key that clients must send.")
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return parser


def parse_args(argv: list[str]) -> RouterArgs:
    """Parse `argv` and put the secrets it names in. Raises InputError when one cannot be read."""
    parsed = make_parser().parse_args(argv)
    arguments = RouterArgs.from_cli_args(parsed, use_router_prefix=False)
    if parsed.api_key_file:
        arguments.api_key = read_key(find_credential(API_KEY, parsed.api_key_file))
    if arguments.server_key_path:
        arguments.server_key_path = str(find_credential(TLS_KEY, arguments.server_key_path))
    return arguments


def main(argv: list[str]) -> None:
    """Serve until SIGTERM."""
    try:
        arguments = parse_args(argv)
    except Dsv41Error as error:
        sys.exit(f"Error: {error}")
    Router.from_args(arguments).start()


if __name__ == "__main__":
    main(sys.argv[1:])
