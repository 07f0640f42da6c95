"""The playbooks parse, are documented, and call nothing that does not exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from dsv41_serving.release.room import COPY_DIRECTORY

ROOT = Path(__file__).parents[2]
GB = 10**9
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
            modules = [key for key in task if key.startswith(("ansible.builtin.", "dsv41_"))]
            assert len(modules) == 1 or "block" in task, (file.name, task["name"])
            assert "ansible.builtin.shell" not in modules, (file.name, task["name"])
            if "ansible.builtin.command" in modules:
                assert "changed_when" in task, (file.name, task["name"])


def _tasks(tasks: list[dict]) -> list[dict]:
    inner = [task.get(part, []) for task in tasks for part in ("block", "rescue", "always")]
    return tasks + [task for part in inner for task in _tasks(part)]


def _layout(groups: dict[str, list[str]], here: str, node: dict[str, object] | None = None) -> dict[str, object]:
    place = {"a": "192.0.2.1", "b": "192.0.2.2", "c": "192.0.2.3"}
    variables = {name: {"inventory_hostname": name, "ansible_host": address} for name, address in place.items()}
    variables["b"] |= {"dsv41_address": "198.51.100.2", "dsv41_device": "eth1"}
    layout: dict[str, object] = _filters().dsv41_layout(groups, variables, here, node or {})
    return layout


def _filters() -> ModuleType:
    return _plugin("filter/dsv41.py")


def _plugin(path: str) -> ModuleType:
    """Return a plug-in, which Ansible loads by its path."""
    spec = importlib.util.spec_from_file_location("dsv41_plugin", ANSIBLE / "plugins" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_groups_say_where_services_run() -> None:
    assert _layout({"dsv41": ["a", "b"], "prefill": ["a"], "decode": ["b"], "router": ["a"]}, "b") == {
        "node": {"name": "b"},
        "hosts": {
            "a": {"address": "192.0.2.1", "services": ["prefill", "router"]},
            "b": {"address": "198.51.100.2", "services": ["decode"], "device": "eth1"},
        },
    }


def test_an_inventory_of_one_host_says_nothing_about_hosts() -> None:
    assert _layout({"dsv41": ["a", "b"]}, "a") == {}
    assert _layout({"dsv41": ["a"], "prefill": ["a"], "decode": ["a"], "router": ["a"]}, "a") == {}


@pytest.mark.parametrize(
    ("groups", "here", "node", "line"),
    [
        (
            {"prefill": ["a"], "decode": ["b", "c"], "router": ["a"]},
            "a",
            {},
            "inventory group decode names b and c; name one",
        ),
        ({"prefill": ["a"], "decode": ["b"], "router": ["a"]}, "c", {}, "inventory host 'c' is in none of the groups"),
        ({}, "a", {"hosts": {"a": {}}}, "dsv41_node of a, key hosts: the groups prefill, decode, router say it"),
        ({"router": ["a.example"]}, "a.example", {}, "inventory host 'a.example' becomes a name in the node file"),
    ],
)
def test_groups_that_make_no_layout_are_refused(
    groups: dict[str, list[str]], here: str, node: dict[str, object], line: str
) -> None:
    with pytest.raises(Exception, match=re.escape(line)):
        _layout(groups, here, node)


def test_the_example_inventory_makes_the_example_node_file() -> None:
    inventory = yaml.safe_load((ANSIBLE / "examples/three-hosts.yml").read_text(encoding="utf-8"))["dsv41"]
    groups = {name: list(group["hosts"]) for name, group in inventory["children"].items()}
    hosts = {
        name: {"inventory_hostname": name, **values}
        for group in inventory["children"].values()
        for name, values in group["hosts"].items()
    }
    layout = _filters().dsv41_layout(groups, hosts, "gpu-b", inventory["vars"]["dsv41_node"])
    text = tomllib.loads((ROOT / "deploy/three-hosts.toml").read_text(encoding="utf-8"))
    assert (layout["node"], layout["hosts"]) == (text["node"], text["hosts"])
    assert (
        "ok: "
        in subprocess.run(
            [sys.executable, "-m", "dsv41_serving", "--node", ROOT / "deploy/three-hosts.toml", "config", "check"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )


def test_a_first_installation_needs_an_environment_and_a_bundle_its_size_twice(tmp_path: Path) -> None:
    ask = _filters().dsv41_room
    assert ask("", "/opt/dsv41", first=True) == {"/opt/dsv41": 15 * GB, "/var/tmp": 0}
    assert ask("", "/opt/dsv41", first=False) == {"/opt/dsv41": 0, "/var/tmp": 0}
    bundle = tmp_path / "dsv41-0.1.0-1a2b.tar"
    with bundle.open("wb") as stream:
        stream.truncate(4_700_000_000)  # a hole: takes no room
    assert ask(str(bundle), "/opt/dsv41", first=True) == {"/opt/dsv41": 19_700_000_000, "/var/tmp": 4_700_000_000}
    assert ask(str(bundle), "/opt/dsv41", first=False) == {"/opt/dsv41": 4_700_000_000, "/var/tmp": 4_700_000_000}
    with pytest.raises(Exception, match=r"^dsv41_bundle: no file /nowhere/b\.tar; make one with `dsv41 bundle`"):
        ask("/nowhere/b.tar", "/opt/dsv41", first=True)


def test_the_bundle_is_copied_to_where_room_is_asked_for() -> None:
    tasks = (ROOT / "ansible/roles/node/tasks/release.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"(/\S+)/dsv41-bundle\.tar", tasks)) == {COPY_DIRECTORY}


def test_directories_of_one_disk_share_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second disk is one that every Linux has: /proc. What does not exist yet will lie where its parent does."""
    room = _plugin("modules/dsv41_room.py")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: SimpleNamespace(free=20 * GB))
    root, copies = str(tmp_path / "opt/dsv41"), str(tmp_path)
    assert room.find_shortages({root: 15 * GB, copies: 0}) == []
    assert room.find_shortages({root: 19_700_000_000, copies: 4_700_000_000}) == [
        f"{root} and {copies}: 20.0 GB free, 24.4 GB needed"
    ]
    assert room.find_shortages({root: 19_700_000_000, "/proc": 4_700_000_000}) == []
    assert room.find_shortages({root: 21 * GB, "/proc/none": 22 * GB}) == [
        f"{root}: 20.0 GB free, 21.0 GB needed",
        "/proc/none: 20.0 GB free, 22.0 GB needed",
    ]
