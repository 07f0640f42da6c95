"""The playbooks parse, are documented, and call nothing that does not exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "ansible"
PLAYBOOKS = sorted(path.stem for path in (ANSIBLE / "playbooks").glob("*.yml"))


def test_every_playbook_parses(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("ansible-playbook"), "--syntax-check", "-i", "inventory"]
    done = subprocess.run(
        [*command, *(f"playbooks/{name}.yml" for name in PLAYBOOKS)],
        cwd=ANSIBLE,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("playbook: ") == len(PLAYBOOKS)


def test_every_playbook_is_documented_and_no_other() -> None:
    text = (ANSIBLE / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == PLAYBOOKS
    both = text + (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"playbooks/(\w+)\.yml", both)) <= set(PLAYBOOKS)


def test_defaults_are_those_of_the_argument_spec() -> None:
    for role in ("node", "monitoring"):
        defaults = yaml.safe_load((ANSIBLE / f"roles/{role}/defaults/main.yml").read_text(encoding="utf-8"))
        spec = yaml.safe_load((ANSIBLE / f"roles/{role}/meta/argument_specs.yml").read_text(encoding="utf-8"))
        options = spec["argument_specs"]["main"]["options"]
        assert defaults == {name: option["default"] for name, option in options.items() if "default" in option}


def test_tasks_use_full_module_names_and_no_shell() -> None:
    for file in ANSIBLE.glob("roles/*/tasks/*.yml"):
        for task in _tasks(yaml.safe_load(file.read_text(encoding="utf-8"))):
            modules = [key for key in task if key.startswith("ansible.builtin.") or key == "dsv41_release"]
            assert len(modules) == 1 or "block" in task, (file.name, task["name"])
            assert "ansible.builtin.shell" not in modules, (file.name, task["name"])
            if "ansible.builtin.command" in modules:
                assert "changed_when" in task, (file.name, task["name"])


def _tasks(tasks: list[dict]) -> list[dict]:
    inner = [task.get(part, []) for task in tasks for part in ("block", "rescue", "always")]
    return tasks + [task for part in inner for task in _tasks(part)]
