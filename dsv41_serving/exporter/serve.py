"""Serve the page on loopback, or where the other hosts of the layout reach it: a process of its own under systemd, a thread beside `dsv41 up`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, start_http_server

from dsv41_serving.errors import InputError
from dsv41_serving.exporter.capacity import CapacitySource
from dsv41_serving.exporter.engines import EnginesSource
from dsv41_serving.exporter.gpu import GpuSource, services_by_gpu
from dsv41_serving.exporter.handoff import HandoffSource
from dsv41_serving.exporter.kv_bytes import planned_bytes
from dsv41_serving.exporter.numa import NumaSource
from dsv41_serving.exporter.page import Background, Page
from dsv41_serving.exporter.results import CanarySource, ContractSource
from dsv41_serving.exporter.services import ServicesSource

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path
    from wsgiref.simple_server import WSGIServer

    from dsv41_serving.plan.model import Plan

ENGINES_EVERY_S = 10.0
GPU_EVERY_S = 5.0
# Pools have one size from start to end.
CAPACITY_EVERY_S = 60.0
# A walk over the page tables of hundreds of GiB takes seconds of CPU.
NUMA_EVERY_S = 300.0


def build_page(plan: Plan, plan_file: Path | None = None) -> Page:
    """Return the page of `plan`, stored in `plan_file` or not; its background readers start now."""
    monitoring = plan.monitoring
    engines = EnginesSource(plan.engines, partial(planned_bytes, plan), window_factor=monitoring.time_factor)
    return Page(
        (
            ServicesSource(plan, plan_file=plan_file),
            CanarySource(plan.state_dir, monitoring.canary_interval_s),
            ContractSource(plan.state_dir),
            HandoffSource(plan.state_dir),
            Background(engines, max(1.0, ENGINES_EVERY_S * monitoring.time_factor)),
            Background(CapacitySource(plan), CAPACITY_EVERY_S),
            Background(NumaSource(plan), NUMA_EVERY_S),
            Background(GpuSource(services_by_gpu(plan)), GPU_EVERY_S),
        )
    )


def start_exporter(plan: Plan, plan_file: Path | None = None) -> tuple[WSGIServer, threading.Thread]:
    """Begin to serve the page of `plan` and return the server and its thread.

    Raises InputError when the port is taken.
    """
    registry = build_page(plan, plan_file).registry()
    registry.register(PROCESS_COLLECTOR)
    registry.register(GC_COLLECTOR)
    try:
        return start_http_server(plan.monitoring.exporter_port, addr=plan.address, registry=registry)
    except OSError as error:
        raise InputError(
            f"port {plan.monitoring.exporter_port} of the exporter cannot be bound ({error.strerror})",
            where="key monitoring.exporter_port",
            remedy="stop what listens there, or set another port",
        ) from None


def start_beside(plan: Plan, say: Callable[[str], None]) -> None:
    """Serve from a thread of the process that runs the stack. A stack without metrics still serves: a taken port is said."""
    try:
        start_exporter(plan)
    except InputError as error:
        say(f"no metrics of this node: {error}")


def run_exporter(plan: Plan, plan_file: Path | None) -> None:
    """Serve until the process is ended. Raises InputError when the port is taken."""
    _, thread = start_exporter(plan, plan_file)
    thread.join()
