"""Start sglang-router with its own arguments, without what its launcher imports on top.

`sglang_router.launch_router` also loads the Python test balancer and with it all of SGLang and torch: 900 MB and five seconds
for a router written in Rust. The classes used here are the ones that launcher uses.
"""

from __future__ import annotations

import argparse
import sys

from sglang_router.router import Router
from sglang_router.router_args import RouterArgs


def main(argv: list[str]) -> None:
    """Parse `argv` as sglang-router does and serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="launch_router", description="sglang-router 0.3.2")
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    arguments = RouterArgs.from_cli_args(parser.parse_args(argv), use_router_prefix=False)
    Router.from_args(arguments).start()


if __name__ == "__main__":
    main(sys.argv[1:])
