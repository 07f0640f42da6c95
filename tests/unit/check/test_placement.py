"""An engine that does not sit where the plan put it fails its gate, whatever its unit says."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv41_serving.check.placement import Seen, check_placement, judge_placement
from dsv41_serving.plan.model import Placement, Service

STATUS = "Name:\tpython\nCpus_allowed:\tc\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1\n"
MAPS = """\
55d0 {policy} file=/usr/bin/python3.11 mapped=700 N0=700 kernelpagesize_kB=4
55d8 {policy} heap anon=100 dirty=100 N1=98 N0=2 kernelpagesize_kB=4
7f00 {policy} file=/dev/shm/engram dirty=3 N1=3 kernelpagesize_kB=2048
7f10 prefer:0 anon=1 N0=1 kernelpagesize_kB=4
7ffd {policy} stack anon=10 dirty=10 N1=10 kernelpagesize_kB=4
"""


def engine(numa_node: int | None = 1, cpus: tuple[int, ...] = (2, 3)) -> Service:
    return Service(
        name="decode",
        kind="decode",
        argv=(),
        env={},
        placement=Placement(gpus=(4,), numa_node=numa_node, cpus=cpus),
        host="127.0.0.1",
        port=30200,
        ports={"http": 30200},
        metrics_url="",
        after=(),
        start_timeout_s=1,
        drain_timeout_s=1,
    )


def seen(policy: str = "bind:1", cpus: str = "2-3") -> Seen:
    found = Seen()
    found.add(STATUS.format(cpus=cpus), MAPS.format(policy=policy))
    return found


def test_pages_are_counted_by_size_and_those_of_files_are_not() -> None:
    assert seen().bytes_by_node == {1: 108 * 4096 + 3 * (2 << 20), 0: 3 * 4096}


def test_bound_engine_passes_and_foreign_pages_are_said() -> None:
    finding = judge_placement(engine(), seen())
    assert finding.passed
    assert finding.seen == "bind:1, 0.0 GiB on it, 0.0 GiB elsewhere"


@pytest.mark.parametrize(
    ("policy", "cpus", "problem"),
    [
        ("default", "2-3", "memory policy default instead of bind:1"),
        ("bind:0", "2-3", "memory policy bind:0 instead of bind:1"),
        ("bind:1", "0-3", "may run on CPUs 0-1 outside node 1"),
        ("default", "0,2", "may run on CPUs 0 outside node 1; memory policy default instead of bind:1"),
    ],
)
def test_what_differs_from_the_plan_fails(policy: str, cpus: str, problem: str) -> None:
    finding = judge_placement(engine(), seen(policy, cpus))
    assert (finding.passed, finding.seen) == (False, problem)


def test_one_process_of_several_that_is_elsewhere_is_enough() -> None:
    both = seen()
    both.add(STATUS.format(cpus="0"), MAPS.format(policy="default"))
    assert not judge_placement(engine(), both).passed


def test_files_of_procfs_are_read_and_ended_processes_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "proc" / "7"
    directory.mkdir(parents=True)
    (directory / "status").write_text(STATUS.format(cpus="2"))
    (directory / "numa_maps").write_text(MAPS.format(policy="bind:1"))
    assert check_placement(engine(), [7, 8], tmp_path).passed
    nothing = check_placement(engine(), [8], tmp_path)
    assert (nothing.passed, nothing.seen) == (False, "no process could be read")
