"""Which host runs which service, when one machine does not run them all, and what must hold before engines leave loopback."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dsv41_serving.spec.table import ContradictionError, Table

if TYPE_CHECKING:
    from dsv41_serving.spec.model import NodeSpec

HostName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
# Transports of UCX that carry memory from one host to another; the others end at the edge of a machine.
_REACHING = ("tcp", "rc", "ud", "dc", "ib", "gga", "all")
ROUTER = "router"


class Host(Table):
    """One machine of a layout over several."""

    address: str = Field(description="IP address of this host on the network that only the hosts of the layout share.")
    device: str = Field(
        "",
        description="Interface or RDMA port that carries KV there (UCX_NET_DEVICES); empty: UCX takes what it finds.",
        pattern=r"^[^\s,]*(,[^\s,]+)*$",
    )
    services: list[str] = Field(description="What runs here: engines of the shape, and 'router'.", min_length=1)


def check_hosts(spec: NodeSpec) -> None:
    """Raise ContradictionError when `spec.hosts` does not say of every service where it runs, or says what may not be."""
    if not spec.hosts:
        if spec.engine.cross_host:
            raise ContradictionError("engine.cross_host", "there is no table [hosts] to allow it for; remove it")
        return
    if len(spec.hosts) == 1:
        raise ContradictionError("hosts", f"names one host, {_one(spec.hosts)}; remove the table, everything runs here")
    if spec.node.name not in spec.hosts:
        raise ContradictionError(
            "node.name",
            f"'{spec.node.name}' is none of the hosts {', '.join(spec.hosts)}; name the one this file is on",
        )
    _check_addresses(spec)
    _check_services(spec)
    if not spec.engine.cross_host:
        addresses = " and ".join(spec.hosts[spec.host_of(name)].address for name in spec.active_engines())
        raise ContradictionError(
            "engine.cross_host",
            f"engines would listen on {addresses}, off loopback; set it to true to allow that on a network of your own",
        )
    if not spec.router.api_key_file:
        raise ContradictionError(
            "router.api_key_file", "engines off loopback answer to a key alone; set it, and put the file on every host"
        )
    for name, engine in spec.active_engines().items():
        _check_transport(spec, name, {**spec.engine.env, **engine.env}.get("UCX_TLS", ""))


def _check_addresses(spec: NodeSpec) -> None:
    owners: dict[str, str] = {}
    for name, host in spec.hosts.items():
        key = f"hosts.{name}.address"
        try:
            address = ipaddress.ip_address(host.address)
        except ValueError:
            raise ContradictionError(
                key, f"'{host.address}' is not an IP address; write 192.0.2.10, for example"
            ) from None
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            raise ContradictionError(
                key, f"other hosts do not reach '{host.address}'; write the address {name} has on their network"
            )
        if host.address in owners:
            raise ContradictionError(
                key, f"{host.address} is the address of {owners[host.address]} too; give each host its own"
            )
        owners[host.address] = name


def _check_services(spec: NodeSpec) -> None:
    wanted = [*spec.active_engines(), ROUTER]
    owners: dict[str, str] = {}
    for name, host in spec.hosts.items():
        for service in host.services:
            key = f"hosts.{name}.services"
            if service not in wanted:
                raise ContradictionError(
                    key, f"shape {spec.shape} has no service '{service}'; use some of: {', '.join(wanted)}"
                )
            if service in owners:
                raise ContradictionError(
                    key,
                    f"'{service}' is also on {owners[service]}; a service runs on one host, remove it from the other",
                )
            owners[service] = name
    for service in wanted:
        if service not in owners:
            raise ContradictionError("hosts", f"no host runs '{service}'; add it to the services of one")


def _check_transport(spec: NodeSpec, name: str, transports: str) -> None:
    """Refuse a list of transports that end within a machine; an absent or a negated ('^...') list leaves the others."""
    others = {spec.host_of(other) for other, engine in spec.active_engines().items() if engine.role != "aggregated"}
    if spec.engine.transfer_backend != "nixl" or len(others) == 1 or not transports or transports.startswith("^"):
        return
    if not any(transport.startswith(_REACHING) for transport in transports.split(",")):
        table = "engine" if "UCX_TLS" not in spec.engines[name].env else f"engines.{name}"
        raise ContradictionError(
            f"{table}.env.UCX_TLS",
            f"'{transports}' carries no KV between hosts; add tcp, or rc where there is RDMA",
        )


def _one(hosts: dict[str, Host]) -> str:
    return next(iter(hosts))
