"""The units of a node on a kernel with two NUMA nodes, one engine bound to each: what they set is what the kernel has.

Units, systemd, supervisor, gate and exporter are the real ones. What the supervisor starts is a program that answers like an
engine: SGLang itself runs in the same units, on one NUMA node, in `tests/node`.
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
from dsv41_serving.plan.files import render_files
from dsv41_serving.plan.model import Placement
from dsv41_serving.spec import load_spec
from tests.node.machine import BASES, make_template
from tests.qemu.emulator import make_image, missing_tools, run_machine
from tests.unit.run.fake_plan import PROGRAM, fake_plan

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("DSV41_NODE_CACHE", Path.home() / ".cache" / "dsv41-node-tests"))
REPOSITORY, PACKAGES, VENV = Path("/opt/repository"), Path("/opt/packages"), Path("/opt/venv")
STATE, CACHE_DIR, PLAN_FILE = "/var/lib/dsv41", "/var/cache/dsv41", "/etc/dsv41/plan.json"
NODE_OF = {"prefill": 0, "decode": 1}
CPUS_OF = {"prefill": "0-1", "decode": "2-3"}


def plan_on(nodes: dict[str, int]) -> Plan:
    """Return a plan whose engines sit on NUMA nodes of the machine."""
    plan = fake_plan(Path(STATE))
    program = str(REPOSITORY / PROGRAM.relative_to(ROOT))
    services = []
    for service in plan.services:
        node = nodes.get(service.name)
        place = service.placement
        if node is not None:
            place = Placement(gpus=(), numa_node=node, cpus=(2 * node, 2 * node + 1))
        argv = ("/usr/bin/python3", "-I", "-S", program, service.argv[-1])
        services.append(service.model_copy(update={"argv": argv, "placement": place, "start_timeout_s": 600.0}))
    return plan.model_copy(update={"services": tuple(services), "cache_dir": CACHE_DIR})


def move(plan: Plan, name: str, node: int) -> Plan:
    """Return `plan` with engine `name` on another node."""
    place = Placement(gpus=(), numa_node=node, cpus=(2 * node, 2 * node + 1))
    moved = plan.service(name).model_copy(update={"placement": place})
    return plan.model_copy(update={"services": tuple(moved if s.name == name else s for s in plan.services)})


def write_input(directory: Path) -> None:
    """Write what the machine shall install: an environment over the shared packages, and the files of the plan."""
    loaded = load_spec(profile="embedded", overrides=[f"node.state_dir='{STATE}'", f"node.cache_dir='{CACHE_DIR}'"])
    plan = plan_on(NODE_OF)
    root = directory / "root"
    for file in render_files(loaded, plan, Installation(python=str(VENV / "bin/python"), release="r1")):
        path = root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        # `run` itself asks for SGLang and a model first.
        command = f"-m dsv41_serving --plan {PLAN_FILE} run"
        path.write_text(file.text.replace(command, f"{REPOSITORY}/tests/qemu/serve.py {PLAN_FILE}"))
    (directory / "elsewhere.json").write_text(move(plan, "prefill", 1).model_dump_json(exclude={"files", "memory"}))
    packages = root / str(VENV).lstrip("/") / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "shared.pth").write_text(f"{REPOSITORY}\n{PACKAGES}\n")
    (packages.parents[2] / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (packages.parents[2] / "bin").mkdir()
    (packages.parents[2] / "bin/python").symlink_to("/usr/bin/python3.11")


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
    shares = {
        str(REPOSITORY): ROOT,
        str(PACKAGES): Path(sysconfig.get_path("purelib")),
        "/opt/input": directory,
    }
    found: dict[str, Any] = run_machine(make_image(CACHE, make_template(CACHE, BASES["debian-12"])), shares)
    return found


@pytest.fixture(scope="module")
def engines(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Every process of each engine's unit: the supervisor and what it started."""
    found = {name: report["units"][name]["processes"] for name in NODE_OF}
    assert {len(processes) for processes in found.values()} == {2}, f"{report['said']}\n{report['journal']}"
    return found


def test_gate_passes_with_the_placement_in_force(report: dict[str, Any]) -> None:
    findings = {(row["service"], row["check"]): row for rows in report["gate"] for row in rows}
    assert [row for row in findings.values() if not row["passed"]] == []
    assert findings["prefill", "placement"]["seen"].startswith("bind:0, ")
    assert findings["decode", "placement"]["seen"].startswith("bind:1, ")


def test_gate_knows_an_engine_that_sits_elsewhere(report: dict[str, Any]) -> None:
    """The unit binds it to node 0, this plan says node 1: a directive is a wish, the gate reads what became of it."""
    (finding,) = [row for row in json.loads(report["elsewhere"]) if row["check"] == "placement"]
    assert not finding["passed"]
    assert finding["seen"] == "may run on CPUs 0-1 outside node 1; memory policy bind:0 instead of bind:1"


def test_every_process_keeps_to_the_cpus_of_its_node(engines: dict[str, list[dict[str, Any]]]) -> None:
    """`Mems_allowed_list` is about cpusets and stays 0-1: it proves nothing, which is why the gate reads numa_maps."""
    for name, processes in engines.items():
        assert {process["cpus"] for process in processes} == {CPUS_OF[name]}
        assert {process["mems"] for process in processes} == {"0-1"}


def test_exporter_says_where_the_memory_lies(report: dict[str, Any]) -> None:
    lines = dict(line.rsplit(" ", 1) for line in report["metrics"].splitlines() if line.startswith("dsv41_numa_"))
    for name, node in NODE_OF.items():
        assert lines[f'dsv41_numa_bound{{service="{name}"}}'] == "1.0"
        assert float(lines[f'dsv41_numa_resident_bytes{{numa_node="{node}",service="{name}"}}']) > 2**20


def test_limits_are_those_of_the_units(engines: dict[str, list[dict[str, Any]]]) -> None:
    for process in (process for processes in engines.values() for process in processes):
        assert process["memlock"] == ["unlimited", "unlimited"]
        assert process["nofile"] == ["1048576", "1048576"]
        assert process["core"] == ["0", "0"]
        assert process["oom_score_adj"] == "-500"
        assert (process["capabilities"], process["seccomp"]) == ("0000000000000000", "2")


def test_control_groups_are_those_of_the_units(report: dict[str, Any]) -> None:
    units = report["units"]
    assert {name: unit["cgroup"].split("/")[2] for name, unit in units.items()} == {
        "prefill": "dsv41-engines.slice",
        "decode": "dsv41-engines.slice",
        "exporter": "dsv41-infra.slice",
    }
    assert {name: unit["memory.max"] for name, unit in units.items()} == {
        "prefill": "max",
        "decode": "max",
        "exporter": str(1 << 30),
    }
    assert [units[name]["pids.max"] for name in NODE_OF] == ["max", "max"]
    assert report["weights"] == {"dsv41-engines.slice": "1000", "dsv41-infra.slice": "200"}


def test_journal_knows_role_and_release(report: dict[str, Any]) -> None:
    entry = json.loads(report["fields"])
    assert {key: entry[key] for key in ("DSV41_ROLE", "DSV41_SERVICE", "DSV41_RELEASE")} == {
        "DSV41_ROLE": "prefill",
        "DSV41_SERVICE": "prefill",
        "DSV41_RELEASE": "r1",
    }


def test_an_engine_may_lock_memory_make_code_and_copy(report: dict[str, Any]) -> None:
    """What registration of a KV pool, a just-in-time compiler and UCX's lanes inside one host ask of the kernel."""
    probe = report["probes"]["engine"]
    assert probe["result"] == "success", probe["said"]
    assert json.loads(probe["said"]) == {
        "mlock": "ok",
        "made code": "42",
        "library": "3.0",
        "pidfd_getfd": "ok",
        "process_vm_readv": "ok",
    }


def test_the_same_probe_fails_where_it_should(report: dict[str, Any]) -> None:
    """With a small limit a pool cannot be registered; without the named call the hand-off dies; a router makes no code."""
    probes = report["probes"]
    assert json.loads(probes["short of locked memory"]["said"])["mlock"] == "ENOMEM"
    assert json.loads(probes["without the call"]["said"])["pidfd_getfd"] == "killed by SIGSYS"
    router = json.loads(probes["router"]["said"])
    assert (router["made code"], router["pidfd_getfd"]) == ("EPERM", "killed by SIGSYS")


def test_an_exporter_that_grows_is_ended_before_it_costs_serving(report: dict[str, Any]) -> None:
    assert report["probes"]["too large"]["result"] == "oom-kill"
