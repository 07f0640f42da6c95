"""The plan: what runs where, with which command and environment, and which files describe it.

Frozen values, nothing else. `plan.build` makes one from spec and facts; everything after it (run, check, render, docs)
reads it and computes no argument again.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dsv41_serving.spec.model import Contract  # noqa: TC001 - pydantic reads it
from dsv41_serving.spec.monitoring import Monitoring  # noqa: TC001 - pydantic reads it

ServiceKind = Literal["prefill", "decode", "aggregated", "router"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Installation(_Value):
    """Where this project is installed on the target machine."""

    python: str
    """The interpreter of the locked environment."""
    node_file: str = "/etc/dsv41/node.toml"
    """Where the merged node file lies under systemd."""
    plan_file: str = "/etc/dsv41/plan.json"
    """Where the plan lies that the units run: made once, from what the machine was when the files were written."""
    release: str = "unreleased"
    """Name of the installed release, for the journal."""


class Placement(_Value):
    """Where one engine sits."""

    gpus: tuple[int, ...]
    """GPU indices in PCI order; empty on CPU."""
    numa_node: int | None
    """The one node of all its GPUs; None when it may float or spans several."""
    cpus: tuple[int, ...]
    """CPUs its threads may use; empty: all."""


class Service(_Value):
    """One process tree: an engine or the router."""

    name: str
    kind: ServiceKind
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the environment of the supervisor."""
    placement: Placement
    host: str
    port: int
    """HTTP port of the service."""
    ports: dict[str, int]
    """Every port the service binds, by what it is for; `http` is `port`."""
    metrics_url: str
    after: tuple[str, ...]
    """Services whose gate must have passed before this one starts."""
    start_timeout_s: float
    drain_timeout_s: float
    warm_up: tuple[int, ...] = ()
    """Lengths of the prompts it answers before it is ready, in tokens."""
    memory: dict[str, int] = {}
    """What it takes from each pool of memory, in bytes; the pools are those of the budget."""
    credentials: dict[str, str] = {}
    """Secrets the service reads: name of the systemd credential -> file on this machine."""
    node: str = ""
    """Name of the host it runs on."""
    tls_cert_file: str = ""
    """Certificate it answers with; empty: plain HTTP."""

    @property
    def address(self) -> str:
        """The IP address at which the service is reached: loopback where it listens on every address of its host."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 nothing is bound

    @property
    def url(self) -> str:
        """Base URL of the service as the hosts of the plan reach it, without a trailing slash."""
        scheme = "https" if self.tls_cert_file else "http"
        return f"{scheme}://{bracket(self.address)}:{self.port}"

    @property
    def nixl_url(self) -> str | None:
        """Page of NIXL's own counters; None where it serves none."""
        return f"http://{bracket(self.address)}:{self.ports['nixl']}/metrics" if "nixl" in self.ports else None

    @property
    def is_engine(self) -> bool:
        """Whether this is an SGLang server."""
        return self.kind != "router"

    @property
    def digest(self) -> str:
        """A short hash of command and environment: equal for two starts that mean the same."""
        text = json.dumps([self.argv, sorted(self.env.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def bracket(address: str) -> str:
    """Return an IP address as URLs and socket addresses write it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


class ServedModel(_Value):
    """The directory the engines load: links into the checkpoint, with the contract's generation defaults in their place.

    The checkpoint itself is never edited.
    """

    manifest: str
    checkpoint: str
    """Directory of the checkpoint; empty for a model that is prepared under `cache_dir` first."""
    path: str
    generation_config: dict[str, float | bool]
    """Keys set in generation_config.json over those of the checkpoint."""


class RenderedFile(_Value):
    """One file of an installation. `path` is absolute on the target machine."""

    path: str
    text: str
    mode: int = 0o644


class MemoryLine(_Value):
    """One line of the memory budget, in bytes."""

    what: str
    needed: int
    available: int | None
    """None when the machine does not say."""


class Plan(_Value):
    """Everything that follows from one spec on one machine."""

    node: str
    profile: str
    shape: str
    state_dir: str
    cache_dir: str
    served_model_name: str
    contract: Contract
    """What every engine is told to hold requests to."""
    monitoring: Monitoring
    """What the exporter measures against, and where it listens."""
    model: ServedModel
    services: tuple[Service, ...]
    """Those of this host, in start order: engines first, the router last."""
    elsewhere: tuple[Service, ...] = ()
    """Those of the other hosts of the layout, in the same order: where they listen, not where they are placed."""
    hosts: dict[str, str] = {}
    """Every host of the layout and its address on their network; empty when this machine runs everything."""
    memory: tuple[MemoryLine, ...] = ()
    """The budget of starting everything; empty in a stored plan, since the machine's part of it changes by the second."""
    files: tuple[RenderedFile, ...] = ()

    def service(self, name: str) -> Service:
        """Return the service called `name`, on whichever host it runs. Raises KeyError."""
        for service in (*self.services, *self.elsewhere):
            if service.name == name:
                return service
        raise KeyError(name)

    @property
    def release(self) -> str:
        """Name of what this host runs: the version of this project and a hash over its commands."""
        digests = " ".join(service.digest for service in self.services)
        return f"{version('dsv41-serving')}-{hashlib.sha256(digests.encode()).hexdigest()[:8]}"

    @property
    def engines(self) -> tuple[Service, ...]:
        """The SGLang servers of this host, in start order."""
        return tuple(service for service in self.services if service.is_engine)

    @property
    def workers(self) -> tuple[Service, ...]:
        """Every SGLang server that the router passes requests to, on whichever host it runs."""
        return tuple(service for service in (*self.services, *self.elsewhere) if service.is_engine)

    @property
    def has_router(self) -> bool:
        """Whether the router, and with it what watches the whole layout, is on this host."""
        return any(not service.is_engine for service in self.services)

    @property
    def address(self) -> str:
        """The address at which the other hosts reach this one; loopback when there are none."""
        return self.hosts.get(self.node, "127.0.0.1")

    def peers(self, service: Service) -> tuple[Service, ...]:
        """Return the engines of this host that share KV memory with `service` and so restart with it: the rest of its pair."""
        other = {"prefill": "decode", "decode": "prefill"}.get(service.kind)
        return tuple(engine for engine in self.engines if engine.kind == other)

    def writers(self, service: Service) -> tuple[Service, ...]:
        """Return the engines of this host that write into the KV memory of `service`: they must be gone before it may leave."""
        return self.peers(service) if service.kind == "decode" else ()

    def stop_bound_s(self, service: Service) -> float:
        """Return the longest that a drain of `service` takes, those of its writers before it included."""
        return service.drain_timeout_s + max((writer.drain_timeout_s for writer in self.writers(service)), default=0.0)

    @property
    def router(self) -> Service:
        """The service that clients call, on whichever host it runs."""
        return self.service("router")

    @property
    def stop_order(self) -> tuple[str, ...]:
        """Names in the order that is safe for KV memory.

        The router first, then whoever writes into others' memory (prefill), then the owners of that memory (decode):
        with NIXL, SGLang's prefill writes into decode's pages.
        """
        rank = {"router": 0, "prefill": 1, "aggregated": 1, "decode": 2}
        return tuple(service.name for service in sorted(self.services, key=lambda s: rank[s.kind]))
