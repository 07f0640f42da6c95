"""What an operator may write: the tables of a node file and of a profile, with meaning, type and limits of every key.

A profile (`deploy/profiles/NAME.toml`) and a node file (`node.toml`) have the same shape; the node file wins. Unknown keys
are errors. This module holds meaning only: reading and merging is `spec.load`, deriving commands is `plan`.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dsv41_serving.spec.hosts import ROUTER, Host, HostName, check_hosts
from dsv41_serving.spec.monitoring import Monitoring
from dsv41_serving.spec.table import ContradictionError, Port, Seconds, Table

Scalar = bool | int | float | str
FlagValue = Scalar | list[int] | list[str]
EnginePort = Annotated[int, Field(ge=1024, le=65533)]
Bytes = Annotated[int, Field(ge=0)]
WARM_UP_ANSWER = 4
"""Tokens of the answer to a prompt that warms an engine up."""
# Names of engines become names of services, units and files.
EngineName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
# Paths that become directives of a unit: absolute, and without the characters systemd gives a meaning.
CredentialPath = Annotated[str, Field(pattern=r"^([/~][^\s:%\\]*)?$")]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Node(Table):
    """The machine and where this project keeps its own files on it."""

    name: str = Field(
        "node", description="Name of this node in units, logs and metrics.", pattern=r"^[a-z0-9][a-z0-9-]*$"
    )
    user: str = Field("dsv41", description="Unprivileged user that runs every service under systemd.")
    state_dir: str = Field(
        "~/.local/state/dsv41",
        description="Run records, logs, start-up history. Under systemd: /var/lib/dsv41.",
    )
    cache_dir: str = Field(
        "~/.cache/dsv41",
        description="Prepared models and kernel caches; may be deleted while stopped.",
    )

    @model_validator(mode="after")
    def _found_from_everywhere(self) -> Node:
        for key, path in (("state_dir", self.state_dir), ("cache_dir", self.cache_dir)):
            if not path.startswith(("/", "~")):
                raise ContradictionError(key, f"'{path}' is another directory to every shell; write it from / or ~ on")
        return self


class Model(Table):
    """The checkpoint that is served."""

    name: str = Field(description="A manifest under deploy/models/: what the directory must contain.")
    path: str = Field(
        "", description="Directory of the checkpoint. Empty: an embedded model, prepared under node.cache_dir."
    )
    revision: str = Field("", description="Pinned revision of the checkpoint, for the record and the manifest check.")
    synthetic_seed: int | None = Field(
        None,
        ge=0,
        description="Fill the model with weights drawn from this seed: for measuring, its answers mean nothing.",
    )


class Engine(Table):
    """What all engines of the node share: the kind of machine and SGLang settings that must not differ by role."""

    device: Literal["cuda", "cpu"] = Field("cuda", description="'cpu' selects the embedded platform plug-in.")
    compute_capability: str = Field(
        "", description="GPU architecture the values of this profile are for, such as '9.0'. Empty on CPU."
    )
    dtype: str = Field("auto", description="SGLang --dtype.")
    context_length: int = Field(ge=256, description="Longest prompt plus answer, in tokens.")
    page_size: int = Field(256, ge=1, description="Tokens per KV page. V4.1 on a GPU needs 256.")
    transfer_backend: Literal["nixl", "mooncake"] = Field("nixl", description="Who carries the KV hand-off.")
    cross_host: bool = Field(
        default=False,
        description="Allow engines to listen off loopback, on the addresses of [hosts]; they then ask for the key.",
    )
    start_timeout_s: Seconds = Field(
        900.0, description="A start without any progress for this long has failed; progress extends it."
    )
    drain_timeout_s: Seconds = Field(60.0, description="Longest wait for running requests before an engine is stopped.")
    warm_up_tokens: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list,
        description="Prompt lengths that every engine answers before it is ready, so that no client waits for what they compile.",
    )
    args: dict[str, FlagValue] = Field(
        default_factory=dict, description="Further SGLang flags without '--' for every engine; false leaves a flag out."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment of every engine.")


class EngineRole(Table):
    """One SGLang server."""

    role: Literal["prefill", "decode", "aggregated"] = Field(description="What the server does.")
    tp: int = Field(ge=1, le=8, description="Tensor-parallel size: GPUs of this server (processes on CPU).")
    ep: int = Field(1, ge=1, le=8, description="Expert-parallel size; must divide tp.")
    gpus: list[int] | Literal["auto"] = Field(
        "auto", description="GPU indices as the driver counts them; 'auto' takes the GPUs of one NUMA node."
    )
    cross_socket: bool = Field(
        default=False, description="Allow the GPUs of this server to sit on more than one NUMA node."
    )
    host: str = Field("127.0.0.1", description="Address the server binds where [hosts] gives it no other: loopback.")
    port: EnginePort = Field(
        description="HTTP port of the server; the next one joins its ranks, the one after that serves NIXL's own counters."
    )
    bootstrap_port: Port | None = Field(
        None, description="Prefill only: port where decode servers find it. Decode derives it from its prefill."
    )
    memory_fraction: float | None = Field(
        None, gt=0.05, lt=1.0, description="Share of GPU memory for weights and KV pools (--mem-fraction-static)."
    )
    max_total_tokens: int | None = Field(None, ge=256, description="Cap of the KV pool in tokens.")
    max_running_requests: int = Field(
        ge=1, description="Running requests; always passed, because the SWA pool is sized from it."
    )
    chunked_prefill_size: int | None = Field(None, ge=64, description="Prompt tokens per forward pass.")
    graph_batch_sizes: list[int] = Field(
        default_factory=list, description="Decode batch sizes captured as CUDA graphs; empty: SGLang chooses."
    )
    args: dict[str, FlagValue] = Field(default_factory=dict, description="Further SGLang flags of this server alone.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment of this server alone.")

    @model_validator(mode="after")
    def _consistent(self) -> EngineRole:
        if self.role == "prefill" and self.bootstrap_port is None:
            raise ContradictionError("bootstrap_port", "a prefill engine needs it; set it, for example 8998")
        if self.role != "prefill" and self.bootstrap_port is not None:
            raise ContradictionError(
                "bootstrap_port", "only a prefill engine has one; remove it (decode derives it from its prefill)"
            )
        if self.tp % self.ep:
            raise ContradictionError(
                "ep", f"ep {self.ep} does not divide tp {self.tp}; set it to a divisor of tp, such as 1"
            )
        if self.gpus != "auto":
            twice = sorted({gpu for gpu in self.gpus if self.gpus.count(gpu) > 1})
            if twice:
                raise ContradictionError("gpus", f"GPU {twice[0]} is listed twice in {self.gpus}; list every GPU once")
            if len(self.gpus) != self.tp:
                raise ContradictionError(
                    "gpus", f"{self.gpus} has {len(self.gpus)} entries but tp is {self.tp}; make them equal"
                )
        if self.host not in LOOPBACK:
            raise ContradictionError(
                "host",
                f"engines listen on loopback only, not on '{self.host}'; remove it: clients use the router, other hosts [hosts]",
            )
        return self


RouterKind = Literal["smg", "sglang-router"]


class Router(Table):
    """The OpenAI API of the node."""

    kind: RouterKind = Field(
        "smg",
        description="Router implementation; sglang-router loses more of a request (deploy/contract/router-fields.json).",
    )
    host: str = Field("127.0.0.1", description="IP address of the API. Off loopback it needs api_key_file.")
    port: Port = Field(30001, description="Port of the API.")
    metrics_port: Port = Field(29000, description="Prometheus page of the router, on loopback.")
    policy: Literal["round_robin", "random", "cache_aware"] = Field(
        "round_robin",
        description="Choice among workers. power_of_two is not offered: it polls an endpoint 0.5.23 lacks.",
    )
    api_key_file: CredentialPath = Field(
        "",
        description="File with the key clients must send, alone on one line; systemd reads it as root. Empty: no key.",
    )
    tls_cert_file: CredentialPath = Field("", description="Certificate chain of the API (PEM). Empty: plain HTTP.")
    tls_key_file: CredentialPath = Field(
        "", description="Private key of that certificate (PEM); systemd reads it as root."
    )
    request_timeout_s: int = Field(1800, ge=1, description="Longest request.")
    max_concurrent_requests: int = Field(256, ge=1, description="Requests in flight; more wait in the router's queue.")
    queue_timeout_s: int = Field(60, ge=1, description="Longest wait in that queue before the client gets 429.")
    retries: int = Field(
        0, ge=0, description="Retries of a request; 0 lets a failed hand-off reach the client at once."
    )
    breaker_failures: int = Field(10, ge=1, description="Failures in a row before a worker is left out.")
    breaker_open_s: int = Field(15, ge=1, description="How long it is left out; shorter than clients keep retrying.")
    health_interval_s: int = Field(30, ge=1, description="Time between health checks of a worker.")
    health_timeout_s: int = Field(25, ge=1, description="A busy engine answers its health check late, not never.")
    health_failures: int = Field(3, ge=1, description="Failed checks before a worker counts as down.")
    drain_timeout_s: Seconds = Field(30.0, description="Longest wait for running requests when the router stops.")
    args: dict[str, FlagValue] = Field(default_factory=dict, description="Further router flags without '--'.")

    @model_validator(mode="after")
    def _guarded(self) -> Router:
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            raise ContradictionError(
                "host", f"'{self.host}' is not an IP address; write 127.0.0.1, for example"
            ) from None
        if not address.is_loopback and not self.api_key_file:
            raise ContradictionError(
                "host",
                f"'{self.host}' is not loopback, so callers need a key; set router.api_key_file, or keep 127.0.0.1",
            )
        if bool(self.tls_cert_file) is not bool(self.tls_key_file):
            present, absent = ("cert", "key") if self.tls_cert_file else ("key", "cert")
            raise ContradictionError(
                f"tls_{present}_file", f"tls_{absent}_file is missing beside it; set both, or neither for plain HTTP"
            )
        return self


# Named effort -> budget that V4.1's encoder writes into the prompt (deepseek-recipe 0.2.0). 'none' turns thinking off.
EFFORT_BUDGETS = {"minimal": 50, "low": 50, "medium": 75, "high": 75, "xhigh": 75, "ultra": 100, "max": 100}

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "ultra", "max"] | Annotated[int, Field(ge=1, le=100)]
Sampling = Literal["checkpoint"]


class Contract(Table):
    """What a client gets when it sends nothing special. The same on every engine."""

    served_model_name: str = Field(
        "deepseek-v4.1-flash", description="The model id clients send and see.", min_length=1
    )
    aliases: list[str] = Field(
        default_factory=list, description="Further model ids clients may send; answers carry served_model_name."
    )
    reasoning_parser: str = Field("deepseek-v41", description="Splits reasoning from the answer.")
    tool_call_parser: str = Field("deepseekv41", description="Also selects V4.1's own prompt encoder.")
    thinking: bool = Field(default=True, description="Think by default; a request may say otherwise.")
    reasoning_effort: Effort = Field(
        "high", description="Effort of a request that names none: a tier, or a budget from 1 to 100 (high is 75)."
    )
    max_thinking_tokens: int = Field(
        0,
        ge=0,
        description="Longest reasoning before the answer must begin (SGLang's strict thinking); 0: the answer's limit alone.",
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | Sampling = Field(
        0.6, description="Sampling temperature of a request that names none; 'checkpoint' leaves the checkpoint's own."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | Sampling = Field(
        0.95, description="Nucleus of a request that names none; 'checkpoint' leaves the checkpoint's own."
    )
    max_tokens: int = Field(
        32768, ge=1, description="Longest answer of a request that names no length; less where the context leaves less."
    )
    max_tokens_limit: int = Field(0, ge=0, description="Longest answer a request may name; 0: as long as the context.")
    max_choices: int = Field(8, ge=1, le=128, description="Largest n of a request.")
    stream_usage: bool = Field(
        default=False, description="End a stream with a usage chunk when the request does not say whether to."
    )
    cache_report: bool = Field(default=True, description="Report cached prompt tokens in usage.")
    images: bool = Field(default=False, description="Pass images, audio and video on to the model; false refuses them.")

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        if self.max_tokens_limit and self.max_tokens > self.max_tokens_limit:
            raise ContradictionError(
                "max_tokens", f"{self.max_tokens} is above max_tokens_limit {self.max_tokens_limit}; lower it"
            )
        if self.served_model_name in self.aliases:
            raise ContradictionError("aliases", f"'{self.served_model_name}' is served_model_name; remove it here")
        return self


KernelOp = Literal["candidate_scores", "compress", "index_keys", "index_scores", "sparse_decode"]
KernelMode = Literal["off", "on", "shadow"]


class Kernels(Table):
    """This project's Triton kernels inside the engines; on GPUs only."""

    load: bool = Field(
        default=False, description="Load the plug-in dsv41_kernels; each op then has the default of its architecture."
    )
    ops: dict[KernelOp, KernelMode] = Field(
        default_factory=dict,
        description="Op -> off, on, or shadow: the engine's path serves and ours is compared beside it, outside CUDA graphs.",
    )
    shadow_every: int = Field(100, ge=1, description="An op in shadow is compared on one call in this many.")

    @model_validator(mode="after")
    def _loaded(self) -> Kernels:
        if self.ops and not self.load:
            raise ContradictionError("ops", "the plug-in is not loaded; set kernels.load = true, or remove the ops")
        return self


MOST_AREAS = 8
"""Prefill engines that get a staging area of a decode rank; more are served on SGLang's path."""


class Handoff(Table):
    """How prefill hands KV to decode over NIXL."""

    packed: bool = Field(
        default=False,
        description="Gather the pages of a chunk into one block, write it at once and scatter it at decode; both ends need it.",
    )
    slots: int = Field(4, ge=1, le=64, description="Blocks under way to one decode rank.")
    slot_mib: int = Field(
        32,
        ge=1,
        le=1024,
        description="Size of a block. Each rank holds slots times this, decode once for each prefill engine.",
    )
    rest_us: int = Field(
        500,
        ge=0,
        le=5000,
        description=(
            "Longest rest of a scheduler that waits for hand-offs and has no batch to run; a change of a request of its rank ends it. Without "
            "rests (0) its loop keeps Python's interpreter lock from the threads that hand over."
        ),
    )

    @property
    def slot_bytes(self) -> int:
        """Bytes of one block."""
        return self.slot_mib * 2**20

    @property
    def area_bytes(self) -> int:
        """Bytes of one staging area, all its slots: what a rank allocates and registers at once."""
        return self.slots * self.slot_bytes

    def staging_bytes(self, role: str, prefill_engines: int) -> int:
        """Return the most that one rank of an engine of `role` allocates for staging, beside `prefill_engines`: 0 unpacked.

        A prefill rank has one area for all its peers, a decode rank one for each prefill engine that registers with it.
        """
        areas = {"prefill": 1, "decode": min(prefill_engines, MOST_AREAS)}.get(role, 0)
        return areas * self.area_bytes if self.packed else 0


class Memory(Table):
    """Host and GPU memory the plan counts with."""

    host_bytes_per_engine: Bytes = Field(0, description="Host memory of one engine without Engram tables.")
    engram: Literal["none", "hbm", "host_shared", "host_per_rank"] = Field(
        "none", description="Where the Engram tables live: GPU shards, one host copy per engine, one per rank."
    )
    engram_bytes: Bytes = Field(0, description="Size of one copy of the Engram tables.")
    weights_bytes_per_gpu: Bytes = Field(0, description="Weights on each GPU of a TP4 engine, tables in HBM included.")
    shm_bytes: Bytes = Field(0, description="Free space /dev/shm must have.")


class Provenance(Table):
    """Whether anybody has run these values on the hardware they are for, and where they come from."""

    status: Literal["measured", "unmeasured"] = Field(description="'measured' needs a committed result file.")
    result: str = Field("", description="Result file behind 'measured', relative to the repository.")
    sources: dict[str, str] = Field(
        default_factory=dict, description="Key (or table) of this profile -> where the value comes from."
    )

    @model_validator(mode="after")
    def _backed(self) -> Provenance:
        if self.status == "measured" and not self.result:
            raise ContradictionError(
                "result", "status 'measured' needs a result; name the committed file with the measurement"
            )
        return self


class NodeSpec(Table):
    """The merged description of one node."""

    profile: str = Field(description="Name of the profile that supplies every default.")
    shape: str = Field(description="Which of `shapes` runs.")
    node: Node = Field(default=Node(), description="The machine.")
    model: Model = Field(description="The checkpoint.")
    engine: Engine = Field(description="Settings of every engine.")
    engines: dict[EngineName, EngineRole] = Field(description="Every server that some shape runs, by name.")
    shapes: dict[str, list[str]] = Field(description="Name -> servers that run together.")
    hosts: dict[HostName, Host] = Field(
        default_factory=dict,
        description="Where each service runs, by host; node.name says which this is. Empty: all here.",
    )
    router: Router = Field(default=Router(), description="The API.")
    contract: Contract = Field(default=Contract(), description="What clients get.")
    kernels: Kernels = Field(default=Kernels(), description="This project's kernels.")
    handoff: Handoff = Field(default=Handoff(), description="The KV hand-off.")
    monitoring: Monitoring = Field(default=Monitoring(), description="What is scraped.")
    memory: Memory = Field(default=Memory(), description="Memory the plan counts with.")
    provenance: Provenance = Field(description="Where the values come from.")

    @model_validator(mode="after")
    def _kernels_have_a_gpu(self) -> NodeSpec:
        if self.kernels.load and self.engine.device != "cuda":
            raise ContradictionError(
                "kernels.load", "the kernels need GPUs and engine.device is 'cpu'; set it to false"
            )
        return self

    @model_validator(mode="after")
    def _synthetic_has_a_gpu(self) -> NodeSpec:
        if self.model.synthetic_seed is not None and self.engine.device != "cuda":
            raise ContradictionError("model.synthetic_seed", "only an engine on GPUs draws its weights; remove it")
        return self

    @model_validator(mode="after")
    def _packing_has_nixl(self) -> NodeSpec:
        if self.handoff.packed and self.engine.transfer_backend != "nixl":
            raise ContradictionError(
                "handoff.packed",
                f"it packs for NIXL and engine.transfer_backend is '{self.engine.transfer_backend}'; set it to false",
            )
        return self

    @model_validator(mode="after")
    def _shape_is_complete(self) -> NodeSpec:
        if self.shape not in self.shapes:
            raise ContradictionError(
                "shape", f"there is no shape '{self.shape}'; use one of: {', '.join(sorted(self.shapes))}"
            )
        if ROUTER in self.engines:
            raise ContradictionError("engines.router", "the router has this name; give the engine another")
        for shape, names in self.shapes.items():
            for name in names:
                if name not in self.engines:
                    raise ContradictionError(
                        f"shapes.{shape}",
                        f"names engine '{name}', which is not under [engines]; add it or remove the name",
                    )
            roles = [self.engines[name].role for name in names]
            if not roles:
                raise ContradictionError(f"shapes.{shape}", "is empty; name at least one engine")
            if "aggregated" in roles and set(roles) != {"aggregated"}:
                raise ContradictionError(
                    f"shapes.{shape}", f"{names} mixes aggregated engines with prefill or decode; use one kind"
                )
            if "aggregated" not in roles and set(roles) != {"prefill", "decode"}:
                raise ContradictionError(
                    f"shapes.{shape}", f"{names} lacks a prefill or a decode engine; name at least one of each"
                )
        return self

    @model_validator(mode="after")
    def _warm_up_fits(self) -> NodeSpec:
        longest = max(self.engine.warm_up_tokens, default=0)
        rooms = {"engine.context_length": self.engine.context_length} | {
            f"engines.{name}.max_total_tokens": engine.max_total_tokens // self.engine.page_size * self.engine.page_size
            for name, engine in self.active_engines().items()
            if engine.max_total_tokens is not None
        }
        key = min(rooms, key=lambda each: rooms[each])
        if longest and longest + WARM_UP_ANSWER > rooms[key]:
            raise ContradictionError(
                "engine.warm_up_tokens",
                f"{longest} tokens and an answer do not fit into the {rooms[key]} of {key}; leave the longest out",
            )
        return self

    @model_validator(mode="after")
    def _hosts_fit(self) -> NodeSpec:
        check_hosts(self)
        return self

    def host_of(self, service: str) -> str:
        """Return the name of the host that runs `service`; this node where [hosts] is empty."""
        return next((name for name, host in self.hosts.items() if service in host.services), self.node.name)

    def runs_here(self, service: str) -> bool:
        """Return whether `service` runs on this node."""
        return self.host_of(service) == self.node.name

    def active_engines(self) -> dict[str, EngineRole]:
        """Return the engines of the chosen shape, by name, in the order the shape lists them."""
        return {name: self.engines[name] for name in self.shapes[self.shape]}
