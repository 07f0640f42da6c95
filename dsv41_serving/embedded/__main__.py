"""`python -m dsv41_serving.embedded NAME`: prepare an embedded model and print where it is."""

from __future__ import annotations

# ruff: noqa: T201  # this is a command
import argparse
import sys
from pathlib import Path
from typing import get_args

from dsv41_serving.embedded.prepare import ModelName, prepare_model
from dsv41_serving.errors import Dsv41Error


def main() -> int:
    """Prepare the named model; progress goes to standard error, the path to standard output. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.embedded", description=__doc__)
    parser.add_argument("name", choices=get_args(ModelName), metavar="NAME", help=" or ".join(get_args(ModelName)))
    parser.add_argument("--cache-dir", type=Path, default=Path(".state/models"), help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        model = prepare_model(
            arguments.name, arguments.cache_dir, report=lambda line: print(line, file=sys.stderr, flush=True)
        )
    except Dsv41Error as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(model.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
