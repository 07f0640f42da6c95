"""The verb: lines for people, JSON for programs, and an exit code for both."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from dsv41_serving.cli import cli
from dsv41_serving.preflight import CHECKS
from tests.fixtures.machines.build import build_machine

COUNT = sum(len(checks) for checks in CHECKS.values())


def preflight(tmp_path: Path, machine: str, profile: str, *options: str) -> tuple[int, str]:
    """Run `dsv41 preflight` on a recorded machine with directories of its own; return exit code and output."""
    root = build_machine(machine, tmp_path / "machines")
    places = [f"--set=node.state_dir={tmp_path}/state", f"--set=node.cache_dir={tmp_path}/cache"]
    done = CliRunner().invoke(cli, ["--profile", profile, "--root", str(root), *places, "preflight", *options])
    return done.exit_code, done.output


def test_a_laptop_can_run_the_embedded_stack(tmp_path: Path) -> None:
    code, output = preflight(tmp_path, "laptop", "embedded", "--json")
    report = json.loads(output)
    assert [row for row in report["checks"] if row["verdict"] == "fail"] == []
    assert (code, report["passed"], report["cleaned"]) == (0, True, [])
    assert len(report["checks"]) + len(report["not_applicable"]) == COUNT


def test_a_node_without_its_model_is_refused(tmp_path: Path) -> None:
    """One line for each check, the last one a sum; exit code 1."""
    code, output = preflight(tmp_path, "two-socket-8gpu", "h200x8")
    lines = output.splitlines()
    assert code == 1
    assert f"fail  {'files.model':<25} /srv/models/deepseek-v4.1-flash: the model directory does not exist" in output
    assert all(line.split()[0] in {"pass", "warn", "fail"} for line in lines[:-1])
    assert lines[-1].startswith(f"{len(lines) - 1} checks: ")


def test_the_list_names_every_check_with_its_question_and_reason(tmp_path: Path) -> None:
    code, output = preflight(tmp_path, "laptop", "embedded", "--list")
    assert code == 0
    assert len(output.splitlines()) == COUNT
    assert "gpu.idle" in output
    assert "Are the GPUs free of other processes?  (vllm#55510" in output


def test_cleaning_a_clean_node_does_nothing(tmp_path: Path) -> None:
    code, output = preflight(tmp_path, "laptop", "embedded", "--clean", "--json")
    assert (code, json.loads(output)["cleaned"]) == (0, [])


def test_the_readme_says_how_many_questions_there_are() -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    assert f"`dsv41 preflight` asks {COUNT} questions" in text
