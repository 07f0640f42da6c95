"""Command and environment of one SGLang server. Pure; the only place that knows SGLang's flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dsv41_serving.credential import API_KEY
from dsv41_serving.errors import InputError
from dsv41_serving.plan.flags import check_args, check_env, flag_args
from dsv41_serving.plan.model import Placement, Service, bracket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.spec.model import EngineRole, FlagValue, NodeSpec

# SGLang's own default would be a random free port, which two engines starting together can both be given.
RENDEZVOUS_PORT_OFFSET = 1
NIXL_PORT_OFFSET = 2
# Names of this project's entry points in `sglang.srt.platforms` and `sglang.srt.plugins`.
PLATFORM = "dsv41_embedded"
CONTRACT_PLUGIN = "dsv41_contract"
KERNELS_PLUGIN = "dsv41_kernels"
SYNTHETIC_PLUGIN = "dsv41_synthetic"
# For UCX_PROTO_INFO: once for each peer UCX prints what carries remote writes, which are all that the NIXL path sends.
WRITE_TABLES = "*write by ucp_put*"
# Where the plug-in puts the rank of a scheduler process for NIXL.
RANK_VARIABLE = "DSV41_RANK"
# Read by the contract's plug-in (sglang_plugin.contract.key).
KEY_FILE = "DSV41_API_KEY_FILE"
UCX_DEVICES = "UCX_NET_DEVICES"
NIXL_LOOPBACK = "NIXL_TELEMETRY_PROMETHEUS_LOCAL"
LOOPBACK_DEVICE = "lo"
HANDOFF_PLUGIN = "dsv41_handoff"
# Below node.state_dir.
CRASH_DIR = "crash"


def plan_engine(spec: NodeSpec, name: str, placement: Placement, *, python: str, model_path: str) -> Service:
    """Return the service of engine `name`, which loads `model_path` with the interpreter `python`.

    Raises InputError for a flag or variable that may not be set by hand, and for a decode engine with no single prefill to pair with.
    """
    engine = spec.engines[name]
    check_args(spec.engine.args, "engine.args")
    check_args(engine.args, f"engines.{name}.args")
    check_env(spec.engine.env, "engine.env")
    check_env(engine.env, f"engines.{name}.env")
    host = spec.hosts[spec.host_of(name)].address if spec.hosts else engine.host
    ports = {"http": engine.port, "rendezvous": engine.port + RENDEZVOUS_PORT_OFFSET}
    if engine.bootstrap_port is not None:
        ports["bootstrap"] = engine.bootstrap_port
    if _counts_transfers(spec, engine):
        ports["nixl"] = engine.port + NIXL_PORT_OFFSET
    flags: dict[str, FlagValue] = {
        "model-path": model_path,
        **_contract_flags(spec),
        "host": host,
        "port": engine.port,
        "device": spec.engine.device,
        "dtype": spec.engine.dtype,
        "tp-size": engine.tp,
        "context-length": spec.engine.context_length,
        "page-size": spec.engine.page_size,
        "max-running-requests": engine.max_running_requests,
        "nccl-port": ports["rendezvous"],
        "enable-metrics": True,
        # The requests of the last minutes, written when the server crashes.
        "crash-dump-folder": f"{spec.node.state_dir}/{CRASH_DIR}",
        **({} if spec.model.synthetic_seed is None else {"load-format": "dummy"}),
        **_sizing_flags(engine),
        **_role_flags(spec, name),
        **spec.engine.args,
        **engine.args,
    }
    return Service(
        name=name,
        kind=engine.role,
        node=spec.host_of(name),
        argv=(python, "-m", "sglang.launch_server", *flag_args(flags)),
        env=_network_env(
            spec,
            name,
            {
                **_base_env(spec, engine, placement),
                **_transfer_env(engine),
                **_nixl_env(ports),
                **spec.engine.env,
                **engine.env,
            },
        ),
        placement=placement,
        host=host,
        port=engine.port,
        ports=ports,
        metrics_url=f"http://{bracket(host)}:{engine.port}/metrics",
        after=(),
        start_timeout_s=spec.engine.start_timeout_s,
        drain_timeout_s=spec.engine.drain_timeout_s,
        warm_up=tuple(spec.engine.warm_up_tokens),
        credentials={API_KEY: spec.router.api_key_file} if spec.hosts else {},
    )


def _contract_flags(spec: NodeSpec) -> dict[str, FlagValue]:
    contract = spec.contract
    return {
        "served-model-name": contract.served_model_name,
        "reasoning-parser": contract.reasoning_parser,
        "tool-call-parser": contract.tool_call_parser,
        "default-chat-template-kwargs": json.dumps({"thinking": contract.thinking}),
        "sampling-defaults": "model",
        "enable-cache-report": contract.cache_report,
        "enable-strict-thinking": contract.max_thinking_tokens > 0,
        # A vision checkpoint otherwise warms itself up with an image, which the contract refuses.
        "language-model-only": spec.engine.device == "cuda" and not contract.images,
    }


def _plugins_env(spec: NodeSpec, engine: EngineRole) -> dict[str, str]:
    """The plug-ins of this project that the engine loads; the list also keeps out those of other installed packages."""
    plugins = [CONTRACT_PLUGIN] if spec.engine.device == "cuda" else [PLATFORM, CONTRACT_PLUGIN]
    if spec.kernels.load:
        plugins.append(KERNELS_PLUGIN)
    if spec.model.synthetic_seed is not None:
        plugins.append(SYNTHETIC_PLUGIN)
    hands_over = engine.role != "aggregated" and spec.engine.transfer_backend == "nixl"
    if hands_over:
        plugins.append(HANDOFF_PLUGIN)
    return {
        "SGLANG_PLUGINS": ",".join(plugins),
        **({"DSV41_HANDOFF": spec.handoff.model_dump_json()} if hands_over else {}),
    }


def _contract_env(spec: NodeSpec) -> dict[str, str]:
    """What SGLang has no flag for: the table itself, for this project's plug-in, and the encoder's defaults."""
    limit = spec.contract.max_thinking_tokens
    return {
        **({"SGLANG_MAX_THINK_TOKENS": str(limit)} if limit else {}),
        "DSV41_CONTRACT": spec.contract.model_dump_json(),
        "SGLANG_DEFAULT_THINKING": "true" if spec.contract.thinking else "false",
        "SGLANG_DSV41_REASONING_EFFORT": str(spec.contract.reasoning_effort),
    }


def _kernels_env(spec: NodeSpec) -> dict[str, str]:
    """What the plug-in dsv41_kernels reads; nothing when it is not loaded."""
    if not spec.kernels.load:
        return {}
    return {
        "DSV41_KERNELS": ",".join(f"{op}={mode}" for op, mode in spec.kernels.ops.items()),
        "DSV41_KERNELS_SHADOW_EVERY": str(spec.kernels.shadow_every),
    }


def _synthetic_env(spec: NodeSpec) -> dict[str, str]:
    """What the plug-in dsv41_synthetic reads."""
    seed = spec.model.synthetic_seed
    return {} if seed is None else {"DSV41_SYNTHETIC_SEED": str(seed)}


def _transfer_env(engine: EngineRole) -> dict[str, str]:
    return {} if engine.role == "aggregated" else {"UCX_PROTO_INFO": WRITE_TABLES}


def _counts_transfers(spec: NodeSpec, engine: EngineRole) -> bool:
    return spec.monitoring.nixl and spec.engine.transfer_backend == "nixl" and engine.role != "aggregated"


def _nixl_env(ports: Mapping[str, int]) -> dict[str, str]:
    """Make NIXL serve its counters where the plan has a port for it: one page for all ranks of the engine.

    The exporter `prometheus` binds a port in each process and so serves one rank alone. With `prometheus_mp` every rank
    writes into a directory, which has to be private and as short-lived as the engine, and one of them serves it.
    """
    if "nixl" not in ports:
        return {}
    return {
        "NIXL_TELEMETRY_ENABLE": "y",
        "NIXL_TELEMETRY_EXPORTER": "prometheus_mp",
        "NIXL_TELEMETRY_MULTIPROC_DIR": "{TMPDIR}/nixl",
        NIXL_LOOPBACK: "y",
        "NIXL_TELEMETRY_PROMETHEUS_PORT": str(ports["nixl"]),
        "NIXL_TELEMETRY_RANK_ENV": RANK_VARIABLE,
    }


def _sizing_flags(engine: EngineRole) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    if engine.ep > 1:
        flags["ep-size"] = engine.ep
    if engine.memory_fraction is not None:
        flags["mem-fraction-static"] = engine.memory_fraction
    if engine.max_total_tokens is not None:
        flags["max-total-tokens"] = engine.max_total_tokens
    if engine.chunked_prefill_size is not None:
        flags["chunked-prefill-size"] = engine.chunked_prefill_size
    if engine.graph_batch_sizes:
        flags["cuda-graph-bs-decode"] = engine.graph_batch_sizes
    return flags


def _role_flags(spec: NodeSpec, name: str) -> dict[str, FlagValue]:
    engine = spec.engines[name]
    if engine.role == "aggregated":
        return {}
    return {
        "disaggregation-mode": engine.role,
        "disaggregation-transfer-backend": spec.engine.transfer_backend,
        # On decode SGLang reads the same flag as the port of its prefill.
        "disaggregation-bootstrap-port": _bootstrap_port(spec, name),
    }


def _bootstrap_port(spec: NodeSpec, name: str) -> int:
    ports = {e.bootstrap_port for e in spec.active_engines().values() if e.bootstrap_port is not None}
    own = spec.engines[name].bootstrap_port
    if own is not None:
        return own
    if len(ports) != 1:
        raise InputError(
            f"decode needs one bootstrap port, the prefill engines have {sorted(ports)}",
            where=f"key shapes.{spec.shape}",
            remedy="keep one prefill engine in the shape",
        )
    return ports.pop()


def _network_env(spec: NodeSpec, name: str, env: dict[str, str]) -> dict[str, str]:
    """Return `env` for an engine whose peers are on other hosts.

    The address is where SGLang's control sockets listen, and what peers are told; what keeps UCX on loopback is dropped. The
    file is read by the contract's plug-in: off loopback an engine asks for the key, which both routers show to their workers.
    """
    if not spec.hosts:
        return env
    host = spec.hosts[spec.host_of(name)]
    kept = {key: value for key, value in env.items() if (key, value) != (UCX_DEVICES, LOOPBACK_DEVICE)}
    device = {UCX_DEVICES: host.device} if host.device else {}
    pages = {NIXL_LOOPBACK: "n"} if NIXL_LOOPBACK in env else {}
    return {**kept, **device, **pages, "SGLANG_HOST_IP": host.address, KEY_FILE: spec.router.api_key_file}


def _base_env(spec: NodeSpec, engine: EngineRole, placement: Placement) -> dict[str, str]:
    env = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        # Off, /health answers without a forward pass; the supervisor asks /health_generate when it wants one.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        **_plugins_env(spec, engine),
        **_contract_env(spec),
        **_kernels_env(spec),
        **_synthetic_env(spec),
    }
    if spec.engine.device == "cpu":
        env["SGLANG_PLATFORM"] = PLATFORM
        env["CUDA_VISIBLE_DEVICES"] = ""
    else:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in placement.gpus)
    return env
