"""Rendered files in the hands of the programs they are for: systemd and Prometheus."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.plan.install import write_files
from dsv41_serving.spec import load_spec, profile_names
from tests.unit.plan.machines import turn_into

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.facts import Facts

SHAPES = [(profile, shape) for profile in profile_names() for shape in load_spec(profile=profile).spec.shapes]


def find_tool(name: str, package: str) -> str:
    """Return the path of a program, or skip the test and say how to enable it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: apt-get install {package}")
    return path


def make_here(facts: Facts, profile: str, shape: str) -> Plan:
    """Return a plan whose units name an interpreter that exists on this machine, as systemd wants."""
    loaded = load_spec(profile=profile, overrides=[f"shape={shape}"])
    return make_plan(loaded, turn_into(facts, profile), Installation(python=sys.executable))


@pytest.mark.parametrize(("profile", "shape"), SHAPES)
def test_systemd_accepts_the_units(two_sockets: Facts, tmp_path: Path, profile: str, shape: str) -> None:
    """Any output is a complaint: an unknown directive is only a message."""
    analyze = find_tool("systemd-analyze", "systemd")
    write_files(make_here(two_sockets, profile, shape), tmp_path)
    units = sorted((tmp_path / "etc/systemd/system").iterdir())
    assert len(units) >= 3
    verify = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=yes", *map(str, units)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verify.stdout, verify.stderr, verify.returncode) == ("", "", 0)


# Ten times the exposure that systemd may find; everything else of ours counts as an exporter.
EXPOSURE = {"prefill": 25, "decode": 25, "router": 16}


@pytest.mark.parametrize("key_file", ["", "/etc/dsv41/api-key"])
def test_units_are_hardened(two_sockets: Facts, tmp_path: Path, key_file: str) -> None:
    """Also a router that anybody can reach. That the services still work inside is what the node tests show."""
    analyze = find_tool("systemd-analyze", "systemd")
    loaded = load_spec(profile="h200x8", overrides=[f"router.api_key_file={key_file}"])
    write_files(make_plan(loaded, two_sockets, Installation(python=sys.executable)), tmp_path)
    units = sorted((tmp_path / "etc/systemd/system").glob("*.service"))
    assert {"dsv41-prefill.service", "dsv41-decode.service", "dsv41-router.service"} <= {unit.name for unit in units}
    for unit in units:
        limit = EXPOSURE.get(unit.name.removeprefix("dsv41-").removesuffix(".service"), 20)
        score = subprocess.run(
            [analyze, "--no-pager", "--offline=true", f"--threshold={limit}", "security", str(unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert score.returncode == 0, f"{unit.name}, limit {limit}: {score.stdout[-200:]}{score.stderr}"


def test_prometheus_accepts_its_configuration(two_sockets: Facts, tmp_path: Path) -> None:
    """Debian 12's Prometheus 2.42 included."""
    promtool = find_tool("promtool", "prometheus")
    plan = make_here(two_sockets, "h200x8", "pd")
    write_files(plan, tmp_path)
    config = tmp_path / "etc/dsv41/prometheus/prometheus.yml"
    check = subprocess.run([promtool, "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr
