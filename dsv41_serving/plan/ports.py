"""Collect every port the plan binds and refuse collisions, inside the plan and with what already listens. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsv41_serving.facts.model import Listener
    from dsv41_serving.plan.model import Service


def check_distinct(services: Sequence[Service]) -> None:
    """Raise InputError when two services, or two purposes of one, want the same port."""
    owner: dict[int, str] = {}
    for service in services:
        for purpose, port in service.ports.items():
            key = _key_of(service, purpose)
            this = f"{service.name} ({purpose}, from {key})"
            if port in owner:
                raise InputError(
                    f"port {port} is wanted by {owner[port]} and by {this}",
                    where=f"key {key}",
                    remedy="give one of them another port",
                )
            owner[port] = this


def find_conflicts(services: Sequence[Service], listeners: Iterable[Listener]) -> list[InputError]:
    """Return one error for every port of the plan that something else already listens on."""
    wanted = {port: (service, purpose) for service in services for purpose, port in service.ports.items()}
    conflicts = []
    for listener in sorted(listeners, key=lambda item: item.port):
        if listener.port not in wanted:
            continue
        service, purpose = wanted.pop(listener.port)
        conflicts.append(
            InputError(
                f"port {listener.port} is in use by {describe_owner(listener)}",
                where=f"{service.name} ({purpose})",
                remedy="stop that process, or set another port; `dsv41 down` stops what an earlier `dsv41 up` left",
            )
        )
    return conflicts


def _key_of(service: Service, purpose: str) -> str:
    """Return the key of the node file that decides the port; rendezvous and NIXL follow the HTTP port."""
    table = "router" if service.kind == "router" else f"engines.{service.name}"
    return f"{table}.{purpose}_port" if purpose in {"bootstrap", "metrics"} else f"{table}.port"


def describe_owner(listener: Listener) -> str:
    """Return 'pid 123 (command line)' of a listener, or who it belongs to when the pid may not be read."""
    if listener.pid is None:
        return f"a process of uid {listener.uid} that this user may not inspect"
    command = " ".join(" ".join(listener.command or ()).split())  # a process title is padded with blanks
    return f"pid {listener.pid} ({command[:80]}{'…' if len(command) > 80 else ''})"  # noqa: PLR2004 - fits a terminal
