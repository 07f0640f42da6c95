"""Filters of the playbooks. They run on the controller, in the environment of this project."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

from dsv41_serving.errors import Dsv41Error
from dsv41_serving.plan.files import write_toml
from dsv41_serving.release.room import room_needed
from dsv41_serving.spec import leaves, load_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SERVICES = ("prefill", "decode", "router")
"""Groups of an inventory that say where a service of this name runs."""
HOST_NAME = r"[a-z0-9][a-z0-9-]*"


def dsv41_node_file(node: Mapping[str, Any], where: str) -> str:
    """Return `node` (the variable dsv41_node of host `where`) as the text of a node file, checked as the node will."""
    text = write_toml(dict(leaves(node)), f"Node file of {where}, written by Ansible from the inventory.")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "node.toml"
        path.write_text(text, encoding="utf-8")
        try:
            load_spec(path)
        except Dsv41Error as error:
            message = str(error).replace(str(path), f"dsv41_node of {where}")
            raise AnsibleFilterError(message) from None
    return text


def dsv41_layout(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]], here: str, node: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tables of the node file of host `here` that say where services run; {} when `here` runs all of them.

    `groups` are those of the inventory: prefill, decode and router name the host of each service. `node` is dsv41_node.
    """
    if "hosts" in node:
        raise AnsibleFilterError(f"dsv41_node of {here}, key hosts: the groups {', '.join(SERVICES)} say it; remove it")
    services = [name for name in SERVICES if groups.get(name)]
    hosts: dict[str, dict[str, Any]] = {}
    for name in services:
        if len(groups[name]) > 1:
            raise AnsibleFilterError(
                f"inventory group {name} names {' and '.join(groups[name])}; name one: a service runs on one host"
            )
        (host,) = groups[name]
        if not re.fullmatch(HOST_NAME, host):
            raise AnsibleFilterError(
                f"inventory host '{host}' becomes a name in the node file; use lower-case letters, digits and '-', "
                "and write its address as ansible_host"
            )
        hosts.setdefault(host, {"address": _address(hostvars[host]), "services": []})["services"].append(name)
        if device := hostvars[host].get("dsv41_device"):
            hosts[host]["device"] = device
    if services and here not in hosts:
        raise AnsibleFilterError(
            f"inventory host '{here}' is in none of the groups {', '.join(services)}; add or remove it"
        )
    return {"node": {"name": here}, "hosts": hosts} if len(hosts) > 1 else {}


def _address(variables: Mapping[str, Any]) -> str:
    return str(variables.get("dsv41_address") or variables.get("ansible_host") or variables["inventory_hostname"])


def dsv41_answer(check: Mapping[str, str]) -> str:
    """Return one entry of `dsv41 preflight --json` as the line that the command prints for people."""
    return f"{check['verdict']}  {check['check']}: {check['seen']}; mend: {check['remedy']}"


def dsv41_room(bundle: str, root: str, *, first: bool) -> dict[str, int]:
    """Return bytes by directory of the node that installing `bundle` (a file here; empty: of this checkout) below `root` takes.

    `first`: nothing is installed there yet.
    """
    if bundle and not Path(bundle).is_file():
        raise AnsibleFilterError(f"dsv41_bundle: no file {bundle}; make one with `dsv41 bundle`, or leave it out")
    return room_needed(root, Path(bundle).stat().st_size if bundle else 0, first=first)


class FilterModule:
    """The names under which Ansible finds the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "dsv41_node_file": dsv41_node_file,
            "dsv41_layout": dsv41_layout,
            "dsv41_answer": dsv41_answer,
            "dsv41_room": dsv41_room,
        }
