"""Prove that a port belongs to the process we started: a stale server that still answers must not pass for ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.check.result import Finding
from dsv41_serving.facts import descends_from, find_listener, read_process
from dsv41_serving.plan.ports import describe_owner

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Service


def check_identity(service: Service, pid: int, start_ticks: int) -> Finding:
    """Return whether the listener on the service's port is process `pid` started at `start_ticks`, or a child of it."""
    process = read_process(pid)
    if process is None or process.start_ticks != start_ticks:
        return _finding(
            service, passed=False, seen=f"pid {pid} is no longer the process that was started", remedy="start it again"
        )
    listener = find_listener(service.port, address=service.address)
    if listener is None:
        return _finding(
            service, passed=False, seen=f"nothing listens on port {service.port}", remedy="read the log of the service"
        )
    if listener.pid is None or not descends_from(listener.pid, pid):
        return _finding(
            service,
            passed=False,
            seen=f"port {service.port} belongs to {describe_owner(listener)}, not to pid {pid}",
            remedy="stop that process; two services must not share a port",
        )
    return _finding(service, passed=True, seen=f"port {service.port} is pid {listener.pid}, started by us")


def _finding(service: Service, *, passed: bool, seen: str, remedy: str = "") -> Finding:
    return Finding(service=service.name, check="identity", passed=passed, seen=seen, remedy=remedy)
