"""The engine's unit on a kernel with two NUMA nodes: policy, CPUs, limits and cgroups as the kernel has them, not as asked for.

The unit is the rendered one; only its command differs: the real supervisor starts a program that answers like an engine.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from dsv41_serving.plan import Installation, Plan
from dsv41_serving.plan.model import Placement
from dsv41_serving.plan.units import render_units
from dsv41_serving.spec import load_spec
from tests.node.machine import make_template
from tests.qemu.emulator import make_image, missing_tools, run_machine
from tests.unit.run.fake_plan import PROGRAM, fake_plan

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("DSV41_NODE_CACHE", Path.home() / ".cache" / "dsv41-node-tests"))
GUEST = Path("/opt/repository")
STATE, PLAN_FILE = Path("/var/lib/dsv41"), "/etc/dsv41/plan.json"


def plan_on(node: int, *, start_timeout_s: float) -> Plan:
    """Return a plan whose prefill sits on NUMA node `node` of the machine."""
    plan = fake_plan(STATE)
    program = str(GUEST / PROGRAM.relative_to(ROOT))
    place = Placement(gpus=(), numa_node=node, cpus=(2 * node, 2 * node + 1))
    services = [
        service.model_copy(
            update={
                "argv": ("/usr/bin/python3", "-I", "-S", program, service.argv[-1]),
                "start_timeout_s": start_timeout_s,
                "placement": place if service.name == "prefill" else service.placement,
            }
        )
        for service in plan.services
    ]
    return plan.model_copy(update={"services": tuple(services), "cache_dir": "/var/cache/dsv41"})


def write_input(directory: Path) -> None:
    """Write what the machine shall install: the units for node 1, and two plans, of which only one agrees with them."""
    loaded = load_spec(profile="embedded")
    python = f"/usr/bin/env PYTHONPATH={GUEST}:/opt/packages /usr/bin/python3"
    plan = plan_on(1, start_timeout_s=600.0)
    for file in render_units(loaded, plan, Installation(python=python, plan_file=PLAN_FILE, release="r1")):
        path = directory / "root" / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        command = f"-m dsv41_serving --plan {PLAN_FILE} run"
        path.write_text(file.text.replace(command, f"{GUEST}/tests/qemu/serve.py {PLAN_FILE}"))
    (directory / "root/etc/dsv41").mkdir()
    for name, made in (("plan.json", plan), ("plan-node0.json", plan_on(0, start_timeout_s=60.0))):
        (directory / name).write_text(made.model_dump_json(exclude={"files", "memory"}))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the machine found; one boot for all tests."""
    if missing := missing_tools():
        pytest.skip(f"no machine can be emulated here: {missing}")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the machine has Python 3.11 and takes its packages from here: make PYTHON=python3.11 test-qemu")
    directory = tmp_path_factory.mktemp("input")
    directory.chmod(0o755)
    write_input(directory)
    shares = {"repository": ROOT, "packages": Path(sysconfig.get_path("purelib")), "input": directory}
    found: dict[str, Any] = run_machine(make_image(CACHE, make_template(CACHE)), shares)
    return found


@pytest.fixture(scope="module")
def processes(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The supervisor and the engine that it started."""
    bound = report["bound"]
    assert bound["active"] == "active", f"{bound['said']}\n{bound['journal']}"
    assert len(bound["processes"]) == 2, bound["processes"]
    found: list[dict[str, Any]] = bound["processes"]
    return found


def test_engine_is_ready_only_with_its_placement_in_force(
    report: dict[str, Any], processes: list[dict[str, Any]]
) -> None:
    assert report["bound"]["status"].startswith("ready on port ")
    assert processes


def test_every_process_is_bound_to_the_node_and_its_cpus(processes: list[dict[str, Any]]) -> None:
    """Memory policy shows in numa_maps alone: Mems_allowed_list is about cpusets and stays 0-1."""
    assert [process["policies"] for process in processes] == [["bind:1"]] * 2
    assert [process["heap_nodes"] for process in processes] == [["N1"]] * 2
    assert [process["cpus"] for process in processes] == ["2-3"] * 2
    assert [process["mems"] for process in processes] == ["0-1"] * 2


def test_limits_are_those_of_the_unit(processes: list[dict[str, Any]]) -> None:
    for process in processes:
        assert process["memlock"] == ["unlimited", "unlimited"]
        assert process["nofile"] == ["1048576", "1048576"]
        assert process["core"] == ["0", "0"]
        assert process["oom_score_adj"] == "-500"


def test_engine_has_no_privilege_and_a_system_call_filter(processes: list[dict[str, Any]]) -> None:
    assert {(process["capabilities"], process["seccomp"]) for process in processes} == {("0000000000000000", "2")}


def test_engine_lies_in_its_slice_and_its_weight_is_in_force(
    report: dict[str, Any], processes: list[dict[str, Any]]
) -> None:
    cgroup = "0::/dsv41.slice/dsv41-engines.slice/dsv41-prefill.service"
    assert {process["cgroup"] for process in processes} == {cgroup}
    assert report["bound"]["cpu_weight"] == "1000"


def test_journal_knows_role_and_release(report: dict[str, Any]) -> None:
    entry = json.loads(report["bound"]["fields"])
    assert {key: entry[key] for key in ("DSV41_ROLE", "DSV41_SERVICE", "DSV41_RELEASE", "SYSLOG_IDENTIFIER")} == {
        "DSV41_ROLE": "prefill",
        "DSV41_SERVICE": "prefill",
        "DSV41_RELEASE": "r1",
        "SYSLOG_IDENTIFIER": "dsv41-prefill",
    }


def test_engine_that_sits_elsewhere_never_becomes_ready(report: dict[str, Any]) -> None:
    """The unit binds it to node 1, the plan says node 0: the gate reads the truth and the start fails."""
    found = report["elsewhere"]
    assert found["active"] != "active"
    assert "may run on CPUs 2-3 outside node 0; memory policy bind:1 instead of bind:0" in found["journal"]


def test_failed_start_leaves_an_incident(report: dict[str, Any]) -> None:
    assert [name.split("-", 1)[1] for name in report["incidents"]] == ["prefill.tar.gz"]


def test_memory_is_really_locked_or_really_refused(report: dict[str, Any]) -> None:
    """As RDMA would: with a small limit the registration of a KV pool fails."""
    assert report["mlock"] == {"infinity": "0", "64K": "-1"}
