"""The plan as tables a person can read."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsv41_serving.facts import format_cpu_list
from dsv41_serving.plan.memory import gib

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsv41_serving.plan.model import Plan, Service


def describe_plan(plan: Plan) -> RenderableType:
    """Return services, order, memory and files of `plan` as rich tables."""
    title = f"node {plan.node}   profile {plan.profile}   shape {plan.shape}   model {plan.served_model_name}"
    return Group(
        Text(f"{title}\n"),
        _services(plan),
        *(Text(f"on {each.node} ({plan.hosts[each.node]}): {each.name}, port {each.port}") for each in plan.elsewhere),
        Text(f"\nstart  {' + '.join(worker.name for worker in plan.workers)}, then router"),
        Text(f"stop   {', then '.join(plan.stop_order)}\n"),
        _memory(plan),
        Text(),
        _files(plan),
    )


def command_text(service: Service) -> str:
    """Return the environment and command of `service` as a shell would take them, one setting a line."""
    lines = [f"# {service.name}"]
    lines += [f"{key}={shlex.quote(value)} \\" for key, value in sorted(service.env.items())]
    return "\n".join([*lines, shlex.join(service.argv)])


def _services(plan: Plan) -> Table:
    table = Table(title="Services", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("service", "role", "GPUs", "NUMA", "CPUs", "ports"):
        table.add_column(column, overflow="fold")
    for service in plan.services:
        place = service.placement
        table.add_row(
            service.name,
            service.kind,
            format_cpu_list(place.gpus) or "-",
            "-" if place.numa_node is None else str(place.numa_node),
            format_cpu_list(place.cpus) or "any",
            ", ".join(f"{purpose} {port}" for purpose, port in service.ports.items()),
        )
    return table


def _memory(plan: Plan) -> Table:
    table = Table(title="Memory", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("pool")
    table.add_column("needed", justify="right")
    table.add_column("available", justify="right")
    table.add_column("")
    for line in plan.memory:
        fits = line.available is None or line.needed <= line.available
        available = "unknown" if line.available is None else gib(line.available)
        table.add_row(line.what, gib(line.needed), available, "fits" if fits else "[red]too little[/red]")
    return table


def _files(plan: Plan) -> Table:
    table = Table(title="Files (dsv41 render --root DIR)", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("path")
    table.add_column("bytes", justify="right")
    for file in plan.files:
        table.add_row(file.path, str(len(file.text.encode())))
    return table
