"""The files that describe a plan on its node: node file, systemd units, monitoring. Pure text."""

from __future__ import annotations

import json
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsv41_serving.plan.model import RenderedFile
from dsv41_serving.plan.monitoring import monitoring_files
from dsv41_serving.plan.monitoring_units import STARTED_WITH_TARGET, monitoring_units
from dsv41_serving.resources import data_dir
from dsv41_serving.spec.load import DEFAULT, leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.plan.model import Installation, Plan, Service
    from dsv41_serving.spec.load import LoadedSpec

UNIT_DIR = "/etc/systemd/system"

FILE_LIST = "/etc/dsv41/files"
"""Names every rendered file, one path a line, so that a later plan can remove what it no longer has."""


def render_files(loaded: LoadedSpec, plan: Plan, installation: Installation) -> tuple[RenderedFile, ...]:
    """Return every file of the installation, sorted by path."""
    files = [
        # Without origins: read back on the node, every value comes from this file, and it must not differ from itself.
        RenderedFile(path=installation.node_file, text=node_file_text(loaded, origins=False)),
        RenderedFile(
            path=f"{UNIT_DIR}/dsv41.target",
            text=_fill("dsv41.target", services=f"{_units(plan.services)} {STARTED_WITH_TARGET}"),
        ),
        *monitoring_files(loaded.spec.monitoring, plan),
        *monitoring_units(loaded.spec, plan, installation),
        *(_unit(loaded, plan, service, installation) for service in plan.services),
        RenderedFile(
            path="/etc/sysusers.d/dsv41.conf",
            text=_fill("sysusers.conf", user=loaded.spec.node.user, cache_dir=plan.cache_dir),
        ),
        RenderedFile(
            path="/etc/tmpfiles.d/dsv41.conf",
            text=_fill("tmpfiles.conf", user=loaded.spec.node.user, state_dir=plan.state_dir, cache_dir=plan.cache_dir),
        ),
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


def _units(services: tuple[Service, ...] | tuple[str, ...]) -> str:
    return " ".join(f"dsv41-{service if isinstance(service, str) else service.name}.service" for service in services)


def _unit(loaded: LoadedSpec, plan: Plan, service: Service, installation: Installation) -> RenderedFile:
    """Fill the template of an engine or of the router; `systemd/` explains each directive."""
    stop_after = plan.stop_order[: plan.stop_order.index(service.name)]
    # systemd stops in the reverse of After=, so whatever must stop earlier is ordered after this unit.
    before = [name for name in stop_after if name not in service.after]
    place = service.placement
    numa = (
        f"NUMAPolicy=bind\nNUMAMask={place.numa_node}\nCPUAffinity=numa"
        if place.numa_node is not None
        else "# No NUMA binding: this engine has no single node of its own."
    )
    template = "router.service" if service.kind == "router" else "engine.service"
    text = _fill(
        template,
        name=service.name,
        kind=service.kind,
        node=plan.node,
        user=loaded.spec.node.user,
        python=installation.python,
        node_file=installation.node_file,
        state_dir=plan.state_dir,
        cache_dir=plan.cache_dir,
        numa=numa,
        before=_units(tuple(before)),
        requires=_units(service.after),
        start_timeout=f"{service.start_timeout_s:.0f}",
        stop_timeout=f"{service.drain_timeout_s + 30:.0f}",
    )
    return RenderedFile(path=f"{UNIT_DIR}/dsv41-{service.name}.service", text=text)


def _fill(template: str, **values: str) -> str:
    text = (data_dir("systemd") / f"{template}.in").read_text(encoding="utf-8")
    filled = Template(text).substitute(values)
    # A directive with nothing to say is left out rather than written empty.
    return "\n".join(line for line in filled.split("\n") if line not in {"Requires=", "After=", "Before="})
