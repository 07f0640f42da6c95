"""The documentation says what is: commands exist, links resolve, figures are those of the result file."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import click
import pytest

from dsv41_serving.bench.embedded import insert_table
from dsv41_serving.cli import cli
from dsv41_serving.contract.reference import insert_all
from dsv41_serving.run.up import how_to_call
from dsv41_serving.spec import load_spec, profile_names

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    REPOSITORY / line
    for line in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
)


def _verbs(group: click.Group, prefix: str = "") -> set[str]:
    names = set()
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            names |= _verbs(command, f"{prefix}{name} ")
        else:
            names.add(f"{prefix}{name}")
    return names


def test_readme_table_names_every_verb_and_no_other():
    """A verb that is not documented, or a documented one that is gone, is a fault of the same change."""
    rows = re.findall(r"^\| (`dsv41 [^|]+) \|", README, re.MULTILINE)
    named = set()
    for row in rows:
        group = ""
        for quoted in re.findall(r"`([^`]+)`", row):
            words = [
                word for word in quoted.removeprefix("dsv41 ").split() if word.islower() and not word.startswith("-")
            ]
            if words[0] in {"bench", "config", "contract", "dashboards", "metrics", "release", "transport"}:
                group = f"{words[0]} "
                words = words[1:]
            named.add(f"{group}{words[0]}")
    assert named == _verbs(cli)


def test_readme_lists_every_profile_with_its_shapes():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| [^|]+ \| ([^|]+) \|", README, re.MULTILINE))
    assert set(rows) == set(profile_names())
    for name, shapes in rows.items():
        if shapes.strip() != "the same":
            assert re.findall(r"`(\w+)`", shapes) == list(load_spec(profile=name).spec.shapes)
    assert list(load_spec(profile="b200x8").spec.shapes) == list(load_spec(profile="h200x8").spec.shapes)
    assert list(load_spec(profile="rtxpro6000x8").spec.shapes) == list(load_spec(profile="h200x8").spec.shapes)


def test_readme_example_is_what_up_prints():
    """The address and the body of the README's curl call are those of the embedded plan."""
    from dsv41_serving.facts import read_facts
    from dsv41_serving.plan import Installation, make_plan

    plan = make_plan(load_spec(profile="embedded"), read_facts(), Installation(python="python"))
    printed = [line.strip() for line in how_to_call(plan).splitlines() if line.startswith("  curl") or '"' in line]
    for line in printed:
        assert line in README


def test_figures_in_the_readme_are_those_of_the_result_file():
    result = json.loads((REPOSITORY / "deploy/results/embedded.json").read_text(encoding="utf-8"))
    assert insert_table(README, result) == README


def test_api_in_the_readme_is_the_table_and_the_record():
    """`python -m dsv41_serving.contract.reference README.md` writes it."""
    assert insert_all(README) == README
    record = json.loads((REPOSITORY / "deploy/contract/router-fields.json").read_text(encoding="utf-8"))
    assert {f"{len(found['chat']) + len(found['completions'])} fields" for found in record["routers"].values()} == {
        re.findall(r"(\d+ fields) and forms", README)[0]
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_inside_the_repository_resolve(document: Path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_contributing_names_files_that_exist():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:plan|check)/\w+\.py|errors\.py)`", text):
        assert (REPOSITORY / "dsv41_serving" / name).is_file()
