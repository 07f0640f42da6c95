"""A measurement says where it comes from, also on a machine that has no git, as a node has none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import dsv41_serving
from dsv41_serving.bench.provenance import describe_run

if TYPE_CHECKING:
    import pytest


def test_a_machine_without_git_measures_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = describe_run("dsv41 transport prove")
    assert made["commit"] == "unknown"
    assert made["machine"]["load"] >= 0
    assert made["command"] == "dsv41 transport prove"


def make_checkout(directory: Path) -> str:
    """Make a git repository with one commit in `directory` and return its short hash."""
    git = ["git", "-C", str(directory), "-c", "user.name=n", "-c", "user.email=n@localhost"]
    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "another project"], check=True)
    return subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the checkout somebody stands in, and not that of one it was installed into."""
    here = Path(dsv41_serving.__file__).parent
    expected = subprocess.check_output(["git", "-C", str(here), "rev-parse", "--short", "HEAD"], text=True).strip()
    other = make_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert describe_run("x")["commit"] == expected != other
    package = tmp_path / "lib" / "dsv41_serving"
    package.mkdir(parents=True)
    monkeypatch.setattr(dsv41_serving, "__file__", str(package / "__init__.py"))
    assert describe_run("x")["commit"] == "unknown"
    monkeypatch.setattr(dsv41_serving, "__file__", str(tmp_path / "dsv41_serving" / "__init__.py"))
    (tmp_path / "dsv41_serving").mkdir()
    assert describe_run("x")["commit"] == other
