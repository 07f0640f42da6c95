"""The node file as an Ansible argument spec, so that a wrong key in an inventory is refused before a node is touched.

python -m dsv41_serving.spec.argument_spec ansible/roles/node/meta/argument_specs.yml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from dsv41_serving.spec.explain import json_schema

VARIABLE = "dsv41_node"
HEADER = "# The options of dsv41_node are written by `python -m dsv41_serving.spec.argument_spec FILE` from the node file's schema.\n"
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


def node_options() -> dict[str, Any]:
    """Return the options of a node file by key. Nothing is required: the profile supplies what an inventory leaves out."""
    schema = json_schema()
    return _options(schema, schema["$defs"])


def _options(table: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return {key: _option(value, definitions) for key, value in table["properties"].items()}


def _option(value: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    about = {"description": value["description"]} if "description" in value else {}
    if "$ref" in value:
        value = definitions[value["$ref"].rpartition("/")[2]]
    if "properties" in value:
        return {"type": "dict", **about, "options": _options(value, definitions)}
    # A union (a number or a word) or a constant has no type of its own in an argument spec; the node file's check decides.
    option: dict[str, Any] = {"type": _TYPES.get(value.get("type", ""), "raw"), **about}
    if "enum" in value:
        option["choices"] = list(value["enum"])
    if option["type"] == "list":
        option["elements"] = _TYPES.get(value.get("items", {}).get("type", ""), "raw")
    return option


class _Indented(yaml.SafeDumper):  # type: ignore[misc] # PyYAML has no types
    """Indents lists below their key, as ansible-lint wants them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's
        super().increase_indent(flow, indentless=False)


def update(text: str) -> str:
    """Return the argument specs `text` of a role with the options of `dsv41_node` replaced by those of the schema."""
    specs = yaml.safe_load(text)
    for entry in specs["argument_specs"].values():
        if VARIABLE in entry["options"]:
            entry["options"][VARIABLE]["options"] = node_options()
    written: str = yaml.dump(specs, Dumper=_Indented, sort_keys=False, width=140, allow_unicode=True)
    return f"---\n{HEADER}{written}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(update(file.read_text(encoding="utf-8")), encoding="utf-8")
