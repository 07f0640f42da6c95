"""What is installed is complete, and a machine that only plans and renders needs no torch."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fixtures.machines.build import build_machine

REPOSITORY = Path(__file__).parents[2]

# Run the command line while every heavy package is out of reach.
WITHOUT_ENGINE = """
import sys
for name in ("torch", "sglang", "sglang_router", "nixl", "triton", "transformers", "gguf"):
    sys.modules[name] = None
from dsv41_serving.cli import main
sys.argv = ["dsv41", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(target)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return target / done.stdout.strip().splitlines()[-1]


def test_wheel_holds_the_profiles_manifests_and_unit_templates(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for directory in ("deploy/profiles", "deploy/models", "systemd"):
        for path in (REPOSITORY / directory).iterdir():
            assert f"dsv41_serving/data/{directory}/{path.name}" in names
    assert "dsv41_serving/py.typed" in names
    assert "dsv41_kernels/py.typed" in names


def test_installed_wheel_plans_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    command = [sys.executable, "-c", WITHOUT_ENGINE, "--profile", "h200x8", "config", "check"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    where = "import dsv41_serving.resources as r; print(r.data_dir('deploy'))"
    found = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(site / "dsv41_serving/data/deploy")


@pytest.mark.parametrize(
    "verb", [["config", "show"], ["facts"], ["plan", "--commands"], ["render", "--root", "out"], ["diff"]]
)
def test_planning_needs_no_engine(tmp_path: Path, verb: list[str]) -> None:
    machine = build_machine("two-socket-8gpu", tmp_path)
    command = [sys.executable, "-c", WITHOUT_ENGINE, "--profile", "h200x8", "--root", str(machine), *verb]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if verb == ["diff"] else 0), done.stderr
    assert done.stderr == ""
