"""Many rounds from one import of SGLang's load generator, which takes as long as a short round and as much CPU.

Reads an order as one line of JSON (the directory to work in, the arguments of `sglang.benchmark.serving`), forks, lets that module's
own command line run in the child, and writes the exit status as one line. What the child prints goes to LOG in its directory.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING

from dsv41_serving.plan.model import Placement
from dsv41_serving.run.session import prepare_child

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = "log"


def main() -> None:
    """Serve orders until standard input ends."""
    from sglang.benchmark import serving  # noqa: PLC0415 - the seconds that every round would take

    end_with_us = prepare_child(Placement(gpus=(), numa_node=None, cpus=()), pin=False)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            end_with_us()
            _run(serving.cli_main, order["directory"], order["arguments"])
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(command: Callable[[], None], directory: str, arguments: list[str]) -> None:
    """Be that command, in a process that never returns."""
    status = 1
    try:
        os.chdir(directory)
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["serving", *arguments]
        command()
        status = 0
    except SystemExit as end:
        sys.stdout.flush()
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a child that returned would be a second driver
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
