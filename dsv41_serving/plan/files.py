"""The files that describe a plan on its node: node file, the plan itself, systemd units, monitoring. Pure text."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsv41_serving.plan.grafana import grafana_files
from dsv41_serving.plan.model import RenderedFile
from dsv41_serving.plan.monitoring import monitoring_files
from dsv41_serving.plan.monitoring_units import monitoring_units
from dsv41_serving.plan.units import render_units
from dsv41_serving.spec.load import DEFAULT, leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.plan.model import Installation, Plan
    from dsv41_serving.spec.load import LoadedSpec

FILE_LIST = "/etc/dsv41/files"
"""Names every rendered file, one path a line, so that a later plan can remove what it no longer has."""


def render_files(loaded: LoadedSpec, plan: Plan, installation: Installation) -> tuple[RenderedFile, ...]:
    """Return every file of the installation, sorted by path."""
    files = [
        # Without origins: read back on the node, every value comes from this file, and it must not differ from itself.
        RenderedFile(path=installation.node_file, text=node_file_text(loaded, origins=False)),
        RenderedFile(
            path=installation.plan_file, text=plan.model_dump_json(indent=1, exclude={"files", "memory"}) + "\n"
        ),
        # One Prometheus for the whole layout.
        *(
            (*monitoring_files(loaded.spec.monitoring, plan), *grafana_files(loaded.spec.monitoring))
            if plan.has_router
            else ()
        ),
        *monitoring_units(loaded.spec, plan, installation),
        *render_units(loaded, plan, installation),
    ]
    paths = sorted([FILE_LIST, *(file.path for file in files)])
    files.append(RenderedFile(path=FILE_LIST, text="".join(f"{path}\n" for path in paths)))
    return tuple(sorted(files, key=lambda file: file.path))


def node_file_text(loaded: LoadedSpec, *, origins: bool = True) -> str:
    """Return the merged description as one complete node file; with `origins` each value is followed by where it is from."""
    said = {
        dotted: value
        for dotted, value in leaves(loaded.spec.model_dump())
        if value is not None and value != {} and not dotted.startswith("provenance.sources")
    }
    comments = {dotted: loaded.origins.get(dotted, DEFAULT) for dotted in said} if origins else {}
    return write_toml(said, f"The merged description of node '{loaded.spec.node.name}', written by dsv41.", comments)


def write_toml(values: Mapping[str, Any], title: str, comments: Mapping[str, str] = MappingProxyType({})) -> str:
    """Write dotted keys and their values as TOML tables under a first line `title`; a comment follows its value."""
    lines = [f"# {title}", ""]
    by_table: dict[str, list[tuple[str, Any]]] = {}
    for dotted, value in values.items():
        table, _, key = dotted.rpartition(".")
        by_table.setdefault(table, []).append((key, value))
    for table in sorted(by_table, key=lambda name: (name != "", name)):
        if table:
            lines += ["", f"[{table}]"]
        for key, value in by_table[table]:
            comment = comments.get(f"{table}.{key}" if table else key)
            lines.append(f"{key} = {toml_value(value)}{f'  # {comment}' if comment else ''}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Write one scalar or list as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
