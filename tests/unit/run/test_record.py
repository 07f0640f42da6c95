"""Records of what runs: written whole, read back equal, and never trusted beyond the process they name."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_process
from dsv41_serving.run.record import Records, StackRecord, current_boot, is_process, own_start_ticks, seconds_since
from tests.unit.plan.machines import plan_for
from tests.unit.run.waiting import sleeping_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dsv41_serving.facts import Facts
    from dsv41_serving.run.record import ServiceRecord

    Make = Callable[..., ServiceRecord]


def test_records_come_back_as_written(tmp_path: Path, make_record: Make) -> None:
    """Both kinds, with everything in them; no temporary file stays."""
    records = Records(tmp_path)
    service = make_record(pid=5, start_ticks=7, shared_memory=("a", "b"), tmp_dir="/srv/tmp", problem="no", restarts=2)
    stack = StackRecord(pid=3, start_ticks=4, state="ready", node="left", started_at=1.5, ready_at=2.5)
    records.write_service(service)
    records.write_stack(stack)
    assert records.read_services() == [service]
    assert records.read_stack() == stack
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["service-prefill.json", "up.json"]


def test_the_newest_record_replaces_the_last(tmp_path: Path, make_record: Make) -> None:
    """One file a service."""
    records = Records(tmp_path)
    records.write_service(make_record(state="starting"))
    records.write_service(make_record(state="ready"))
    assert [record.state for record in records.read_services()] == ["ready"]


def test_services_are_listed_in_the_order_of_the_plan(tmp_path: Path, make_record: Make, laptop: Facts) -> None:
    """Without a plan by name; what no plan knows comes last."""
    records = Records(tmp_path)
    for name in ("router", "decode", "older", "prefill"):
        records.write_service(make_record(name=name))
    names = [record.name for record in records.read_services(plan_for(laptop, "embedded"))]
    assert names == ["prefill", "decode", "router", "older"]
    assert [record.name for record in records.read_services()] == ["decode", "older", "prefill", "router"]


def test_nothing_is_known_before_the_first_start(tmp_path: Path) -> None:
    """And reading creates nothing."""
    records = Records(tmp_path / "absent")
    assert records.read_services() == []
    assert records.read_stack() is None
    records.clear()
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"name": "prefill"}', b'{"pid": "x"}'])
def test_a_damaged_record_is_none(tmp_path: Path, make_record: Make, content: bytes) -> None:
    """Nobody may act on half a record; the others still count."""
    records = Records(tmp_path)
    records.write_service(make_record(name="decode"))
    (tmp_path / "run" / "service-prefill.json").write_bytes(content)
    (tmp_path / "run" / "up.json").write_bytes(content)
    assert [record.name for record in records.read_services()] == ["decode"]
    assert records.read_stack() is None


def test_a_later_version_may_add_fields(tmp_path: Path, make_record: Make) -> None:
    """`dsv41 status` of this version still reads the rest."""
    records = Records(tmp_path)
    records.write_service(make_record())
    path = tmp_path / "run" / "service-prefill.json"
    path.write_text(path.read_text().replace("{", '{"colour": "blue",', 1))
    assert [record.name for record in records.read_services()] == ["prefill"]


def test_clearing_forgets_everything_else_stays(tmp_path: Path, make_record: Make) -> None:
    """Locks and logs are not records."""
    records = Records(tmp_path)
    records.write_service(make_record())
    records.write_stack(StackRecord(pid=3, start_ticks=4, state="ready", node="left", started_at=1.5))
    (tmp_path / "run" / "up.lock").touch()
    records.clear()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["up.lock"]


def test_clearing_keeps_what_somebody_looks_after(tmp_path: Path, make_record: Make) -> None:
    """Their supervisor would miss it."""
    records = Records(tmp_path)
    records.write_service(make_record(supervisor_pid=os.getpid(), supervisor_start_ticks=own_start_ticks()))
    records.write_service(make_record(name="decode", supervisor_start_ticks=1))
    records.clear()
    assert [record.name for record in records.read_services()] == ["prefill"]


def test_a_record_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """It is not the same as none: something may run."""
    (tmp_path / "run" / "up.json").mkdir(parents=True)
    with pytest.raises(InputError) as error:
        Records(tmp_path).read_stack()
    where = tmp_path / "run" / "up.json"
    assert str(error.value) == f"{where}: cannot be read (Is a directory); run as the user the services run as"


def test_a_process_is_its_pid_and_its_start(make_record: Make) -> None:
    """The same pid with another start is somebody else; a process that has ended but was not reaped does not run."""
    ticks = own_start_ticks()
    assert make_record(pid=os.getpid(), start_ticks=ticks).alive
    assert not make_record(pid=os.getpid(), start_ticks=ticks + 1).alive
    assert not make_record(pid=os.getpid()).alive
    assert not make_record().alive
    assert StackRecord(pid=os.getpid(), start_ticks=ticks, state="ready", node="n", started_at=0.0).alive
    with sleeping_process() as child:
        process = read_process(child.pid)
        assert process is not None
        assert is_process(child.pid, process.start_ticks)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_process(child.pid, process.start_ticks)


def test_a_boot_has_a_name_that_holds() -> None:
    """Until the machine or the container starts anew."""
    assert current_boot() == current_boot()
    assert len(current_boot().partition("/")[0]) == 36


def test_time_since_is_never_negative() -> None:
    """The clock may have been set back."""
    assert seconds_since(time.time() + 100) == 0.0
    assert seconds_since(time.time() - 100) >= 100.0
