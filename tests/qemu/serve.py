"""Supervise one service of a stored plan, as `dsv41 --plan FILE run NAME` does, without asking for SGLang and a model."""

from __future__ import annotations

import sys
from pathlib import Path

from dsv41_serving.errors import Dsv41Error
from dsv41_serving.plan.install import read_plan
from dsv41_serving.run.service import run_service

if __name__ == "__main__":
    plan = read_plan(Path(sys.argv[1]))
    try:
        run_service(plan, plan.service(sys.argv[2]), say=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    except Dsv41Error as error:
        sys.exit(f"dsv41: {error}")
