"""Filters of the playbooks. They run on the controller, in the environment of this project."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

from dsv41_serving.errors import Dsv41Error
from dsv41_serving.plan.files import write_toml
from dsv41_serving.spec import leaves, load_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


class FilterModule:
    """The names under which Ansible finds the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"dsv41_node_file": dsv41_node_file}
