"""The steps before anything is started, cheapest first, so that bad input is said at once and leaves nothing behind."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.check.start import check_start, check_versions, find_checkpoint
from dsv41_serving.errors import InputError
from dsv41_serving.run.record import Records
from dsv41_serving.run.served import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Plan, Service


def prepare_start(plan: Plan, facts: Facts, services: Sequence[Service], report: Callable[[str], None]) -> None:
    """Check versions, memory and ports, then bring the model and the directory that engines load into place.

    Raises InputError or EngineDriftError with the remedy.
    """
    check_versions()
    check_start(plan, facts, services)
    if any(service.is_engine for service in services):
        lay_out(plan.model, find_checkpoint(plan, report))


@contextmanager
def hold_lock(plan: Plan, name: str) -> Iterator[None]:
    """Hold the lock `name` of this node for as long as the block runs. Raises InputError when another process has it."""
    directory = Records(plan.state_dir).directory
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"'{name}' already runs on this node",
                where=plan.state_dir,
                remedy="`dsv41 status` shows it, `dsv41 down` stops it",
            ) from None
        yield


def log_path(plan: Plan, name: str) -> Path:
    """Return where the output of service `name` goes under `dsv41 up`."""
    return Path(plan.state_dir) / "log" / f"{name}.log"
