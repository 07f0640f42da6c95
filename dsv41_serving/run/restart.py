"""`dsv41 restart`: drain, then restart the router, or engines and router, through whoever looks after them."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts import read_process
from dsv41_serving.run.record import Records
from dsv41_serving.run.up import RESTART_ALL, RESTART_ROUTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.plan.model import Plan
    from dsv41_serving.run.record import ServiceRecord

_POLL_S = 0.1


def restart_services(plan: Plan, show: Callable[[ServiceRecord], None], *, pair: bool) -> None:
    """Restart the router of `plan`, with `pair` the engines too; return when all of it has passed its gate again.

    Raises InputError when nothing runs or this user may not, GateError when a start fails.
    """
    records = Records(plan.state_dir)
    names = [service.name for service in plan.services] if pair else [plan.router.name]
    stack = records.read_stack()
    if stack is not None and stack.alive:
        _restart_stack(plan, records, show, stack.pid, names, pair=pair)
    elif units := _find_units(records, names):
        _restart_units(plan, records, show, units)
    else:
        raise InputError(
            "nothing that can be restarted runs here",
            where=f"node {plan.node}",
            remedy="start it: systemctl start dsv41.target, or `dsv41 up`",
        )


def _restart_stack(
    plan: Plan, records: Records, show: Callable[[ServiceRecord], None], pid: int, names: list[str], *, pair: bool
) -> None:
    before = {record.name: record.restarts for record in records.read_services()}
    os.kill(pid, RESTART_ALL if pair else RESTART_ROUTER)
    while True:
        stack = records.read_stack()
        if stack is None or not stack.alive or stack.state == "failed":
            problem = stack.problem if stack is not None and stack.problem else "`dsv41 up` has ended"
            raise GateError(f"the restart failed: {problem}", remedy="read the logs below node.state_dir")
        services = records.read_services(plan)
        for record in services:
            show(record)
        again = [record for record in services if record.name in names and record.restarts > before.get(record.name, 0)]
        if len(again) == len(names) and all(record.state == "ready" for record in again) and stack.state == "ready":
            return
        time.sleep(_POLL_S)


def _find_units(records: Records, names: list[str]) -> list[str]:
    """Return the units in which the services `names` run; empty when one of them runs in none."""
    units = []
    for record in records.read_services():
        if record.name in names and record.supervised:
            supervisor = read_process(record.supervisor_pid)
            unit = f"dsv41-{record.name}.service"
            if supervisor is not None and unit in (supervisor.cgroup or ""):
                units.append(unit)
    return units if len(units) == len(names) else []


def _restart_units(plan: Plan, records: Records, show: Callable[[ServiceRecord], None], units: list[str]) -> None:
    # A restart on purpose is not one of the tries that the start limit counts.
    subprocess.run(["systemctl", "reset-failed", *units], check=False, stderr=subprocess.DEVNULL)
    # One transaction: systemd stops the router first and starts it last, and the engines side by side in between.
    restart = subprocess.Popen(["systemctl", "restart", *units], stderr=subprocess.PIPE, text=True)
    while restart.poll() is None:
        for record in records.read_services(plan):
            show(record)
        time.sleep(_POLL_S)
    said = restart.stderr.read().strip() if restart.stderr is not None else ""
    for record in records.read_services(plan):
        show(record)
    if restart.returncode:
        raise GateError(
            f"systemctl restart failed: {said.splitlines()[0] if said else restart.returncode}",
            where=" ".join(units),
            remedy="run as root; `systemctl status` and `dsv41 status` say more",
        )
