"""Who looks after the services decides how they are restarted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts import read_process
from dsv41_serving.facts.model import Process
from dsv41_serving.run import restart
from dsv41_serving.run.restart import restart_services
from tests.unit.run.fake_plan import fake_plan, record_services

if TYPE_CHECKING:
    from pathlib import Path


SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
[ "$1" = restart ] && echo "Access denied" >&2
[ "$1" != restart ] || exit {status}
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a systemctl first in PATH that writes down what it is told, and say that this process lies in every unit."""
    log = tmp_path / "systemctl.log"
    write_systemctl(tmp_path, log, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    units = "/dsv41.slice/dsv41-prefill.service/dsv41-decode.service/dsv41-router.service"

    def read(pid: int) -> Process | None:
        process = read_process(pid)
        return process.model_copy(update={"cgroup": units}) if process else None

    monkeypatch.setattr(restart, "read_process", read)
    return log


def write_systemctl(directory: Path, log: Path, status: int) -> None:
    program = directory / "systemctl"
    program.write_text(SYSTEMCTL.format(log=log, status=status), encoding="utf-8")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("pair", "units"),
    [
        (False, "dsv41-router.service"),
        (True, "dsv41-decode.service dsv41-prefill.service dsv41-router.service"),
    ],
)
def test_units_are_restarted_in_one_transaction_outside_the_start_limit(
    tmp_path: Path,
    systemctl: Path,
    pair: bool,  # noqa: FBT001
    units: str,
) -> None:
    plan = fake_plan(tmp_path / "state")
    record_services(plan)
    shown: list[str] = []
    restart_services(plan, lambda record: shown.append(record.name), pair=pair)
    assert systemctl.read_text().splitlines() == [f"reset-failed {units}", f"restart {units}"]
    assert set(shown) == {"prefill", "decode", "router"}


def test_systemctl_that_fails_is_one_line(tmp_path: Path, systemctl: Path) -> None:
    write_systemctl(tmp_path, systemctl, 4)
    plan = fake_plan(tmp_path / "state")
    record_services(plan)
    with pytest.raises(
        GateError, match=r"^dsv41-router\.service: systemctl restart failed: Access denied; run as root"
    ):
        restart_services(plan, lambda _: None, pair=False)


def test_services_that_nobody_can_restart_are_left_alone(tmp_path: Path) -> None:
    """Supervised, but neither by `dsv41 up` nor in a unit: somebody runs them in a terminal."""
    plan = fake_plan(tmp_path)
    record_services(plan)
    with pytest.raises(InputError, match="nothing that can be restarted runs here"):
        restart_services(plan, lambda _: None, pair=True)
