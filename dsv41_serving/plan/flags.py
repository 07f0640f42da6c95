"""Write a table of settings as command-line flags, and refuse flags that belong to the plan. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dsv41_serving.spec.model import FlagValue

_SAME_ON_BOTH = "it is set from the contract so that every engine has the same; set contract.{key} instead"
_OWNED = "the plan sets it; set {key} instead"

# Flag of SGLang -> why it may not stand in `args`.
REFUSED: dict[str, str] = {
    "chat-template": "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it",
    "completion-template": "it bypasses V4.1's own prompt encoder; remove it",
    "hf-chat-template-name": "it bypasses V4.1's own prompt encoder; remove it",
    "swa-full-tokens-ratio": "a copied ratio starves the sliding-window pool and hangs long prompts (sglang#31205); remove it",
    "api-key": "keys never stand on a command line; remove it",
    "admin-api-key": "keys come from a credential file, never from a command line; remove it",
    "served-model-name": _SAME_ON_BOTH.format(key="served_model_name"),
    "reasoning-parser": _SAME_ON_BOTH.format(key="reasoning_parser"),
    "tool-call-parser": _SAME_ON_BOTH.format(key="tool_call_parser"),
    "default-chat-template-kwargs": _SAME_ON_BOTH.format(key="thinking"),
    "sampling-defaults": _SAME_ON_BOTH.format(key="temperature or contract.top_p"),
    "preferred-sampling-params": _SAME_ON_BOTH.format(key="temperature or contract.top_p"),
    "stream-response-default-include-usage": _SAME_ON_BOTH.format(key="stream_usage"),
    "allow-auto-truncate": "it cuts prompts in silence; a client is told that its prompt is too long; remove it",
    "trust-request-chat-template": "a template in a request bypasses V4.1's own prompt encoder; remove it",
    "tokenizer-worker-num": "the contract is held in the one server process; remove it",
    "grpc-port": "the contract is held in the HTTP server and gRPC goes around it; remove it",
    "grpc-mode": "the contract is held in the HTTP server and gRPC goes around it; remove it",
    "smg-grpc-mode": "the contract is held in the HTTP server and gRPC goes around it; remove it",
    "model-path": _OWNED.format(key="model.path"),
    "model": _OWNED.format(key="model.path"),
    "host": _OWNED.format(key="engines.NAME.host"),
    "port": _OWNED.format(key="engines.NAME.port"),
    "device": _OWNED.format(key="engine.device"),
    "dtype": _OWNED.format(key="engine.dtype"),
    "context-length": _OWNED.format(key="engine.context_length"),
    "page-size": _OWNED.format(key="engine.page_size"),
    "tp": _OWNED.format(key="engines.NAME.tp"),
    "tp-size": _OWNED.format(key="engines.NAME.tp"),
    "tensor-parallel-size": _OWNED.format(key="engines.NAME.tp"),
    "ep": _OWNED.format(key="engines.NAME.ep"),
    "ep-size": _OWNED.format(key="engines.NAME.ep"),
    "expert-parallel-size": _OWNED.format(key="engines.NAME.ep"),
    "base-gpu-id": _OWNED.format(key="engines.NAME.gpus"),
    "mem-fraction-static": _OWNED.format(key="engines.NAME.memory_fraction"),
    "max-total-tokens": _OWNED.format(key="engines.NAME.max_total_tokens"),
    "max-running-requests": _OWNED.format(key="engines.NAME.max_running_requests"),
    "chunked-prefill-size": _OWNED.format(key="engines.NAME.chunked_prefill_size"),
    "cuda-graph-bs-decode": _OWNED.format(key="engines.NAME.graph_batch_sizes"),
    "disaggregation-mode": _OWNED.format(key="engines.NAME.role"),
    "disaggregation-bootstrap-port": _OWNED.format(key="engines.NAME.bootstrap_port"),
    "disaggregation-transfer-backend": _OWNED.format(key="engine.transfer_backend"),
    "nccl-port": "the plan derives it from engines.NAME.port; remove it",
    "enable-metrics": "metrics are always on; remove it",
    "crash-dump-folder": "crash dumps lie under node.state_dir; set that instead",
    "language-model-only": _SAME_ON_BOTH.format(key="images"),
    "enable-cache-report": _SAME_ON_BOTH.format(key="cache_report"),
    "enable-strict-thinking": _SAME_ON_BOTH.format(key="max_thinking_tokens"),
    "config": "a second file could set anything behind the plan; write its settings here",
}

# Flag of sglang-router or of smg -> why it may not stand in `router.args`.
REFUSED_BY_ROUTER: dict[str, str] = {
    "api-key": "keys never stand on a command line; set router.api_key_file instead",
    "api-key-file": _OWNED.format(key="router.api_key_file"),
    "tls-cert-path": _OWNED.format(key="router.tls_cert_file"),
    "tls-key-path": _OWNED.format(key="router.tls_key_file"),
    "control-plane-api-keys": "keys come from a credential file, never from a command line; remove it",
    "worker-urls": "the workers are the engines of the shape; set shape instead",
    "pd-disaggregation": "the workers are the engines of the shape; set shape instead",
    "prefill": "the workers are the engines of the shape; set shape instead",
    "decode": "the workers are the engines of the shape; set shape instead",
    "host": _OWNED.format(key="router.host"),
    "port": _OWNED.format(key="router.port"),
    "policy": _OWNED.format(key="router.policy"),
    "prometheus-host": "the router's metrics stay on loopback; remove it",
    "prometheus-port": _OWNED.format(key="router.metrics_port"),
    "request-timeout-secs": _OWNED.format(key="router.request_timeout_s"),
    "shutdown-grace-period-secs": _OWNED.format(key="router.drain_timeout_s"),
    "max-concurrent-requests": _OWNED.format(key="router.max_concurrent_requests"),
    "queue-timeout-secs": _OWNED.format(key="router.queue_timeout_s"),
    "retry-max-retries": _OWNED.format(key="router.retries"),
    "disable-retries": _OWNED.format(key="router.retries"),
    "cb-failure-threshold": _OWNED.format(key="router.breaker_failures"),
    "cb-timeout-duration-secs": _OWNED.format(key="router.breaker_open_s"),
    "health-check-interval-secs": _OWNED.format(key="router.health_interval_s"),
    "health-check-timeout-secs": _OWNED.format(key="router.health_timeout_s"),
    "health-failure-threshold": _OWNED.format(key="router.health_failures"),
    "enable-igw": "the plan sets it for smg, which otherwise answers an unknown model with 503; remove it",
    "model-alias": _OWNED.format(key="contract.aliases"),
    "worker-overload-protection": "it leaves out the only worker there is when it is busy; remove it",
    "disable-worker-overload-protection": "the plan sets it for smg; remove it",
    "worker-wedge-secs": _OWNED.format(key="router.request_timeout_s"),
    "pd-admission-wait-secs": _OWNED.format(key="router.queue_timeout_s"),
    "model": "the engines make the prompts, the router needs no model; remove it",
    "model-path": "the engines make the prompts, the router needs no model; remove it",
    "disable-tokenizer-autoload": "the plan sets it for smg; the prompts are made by the engines; remove it",
    "tenant-api-key": "keys come from a credential file, never from a command line; remove it",
}

# Variable of an engine -> why it may not stand in `env`.
REFUSED_ENV: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": _OWNED.format(key="engines.NAME.gpus"),
    "CUDA_DEVICE_ORDER": "the plan counts GPUs in PCI order; remove it",
    "DSV41_KERNELS": _OWNED.format(key="kernels.ops"),
    "DSV41_KERNELS_SHADOW_EVERY": _OWNED.format(key="kernels.shadow_every"),
    "DSV41_SYNTHETIC_SEED": _OWNED.format(key="model.synthetic_seed"),
    "DSV41_API_KEY_FILE": _OWNED.format(key="router.api_key_file"),
    "DSV41_HANDOFF": "it is the table [handoff]; set its keys instead",
    "DSV41_CONTRACT": "it is the table [contract]; set its keys instead",
    "SGLANG_PLUGINS": "it names the plug-ins of this project; remove it",
    "SGLANG_GRPC_PORT": "the contract is held in the HTTP server and gRPC goes around it; remove it",
    **dict.fromkeys(
        (
            "NIXL_TELEMETRY_ENABLE",
            "NIXL_TELEMETRY_EXPORTER",
            "NIXL_TELEMETRY_MULTIPROC_DIR",
            "NIXL_TELEMETRY_PROMETHEUS_LOCAL",
            "NIXL_TELEMETRY_PROMETHEUS_PORT",
            "NIXL_TELEMETRY_RANK_ENV",
        ),
        _OWNED.format(key="monitoring.nixl"),
    ),
    "SGLANG_DEFAULT_THINKING": _SAME_ON_BOTH.format(key="thinking"),
    "SGLANG_MAX_THINK_TOKENS": _SAME_ON_BOTH.format(key="max_thinking_tokens"),
    "SGLANG_DSV41_REASONING_EFFORT": _SAME_ON_BOTH.format(key="reasoning_effort"),
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "the supervisor relies on the cheap /health; remove it",
    "SGLANG_PLATFORM": _OWNED.format(key="engine.device"),
}


def check_args(args: Mapping[str, FlagValue], where: str, refused: Mapping[str, str] = REFUSED) -> None:
    """Raise InputError when `args` (table `where` of the node file) sets a flag that may not stand there.

    Both parsers accept any unambiguous beginning of a flag, so the beginning of a refused flag is refused too.
    """
    for flag in args:
        name = flag.lstrip("-").replace("_", "-")
        meant = name if name in refused else next((full for full in refused if full.startswith(name)), None)
        if meant is not None:
            short = "" if meant == name else f" (short for --{meant})"
            raise InputError(f"--{name}{short} is refused: {refused[meant]}", where=f"key {where}.{flag}")
        if flag != name:
            raise InputError("is not how a flag is written here", where=f"key {where}.{flag}", remedy=f"write {name}")


def check_env(env: Mapping[str, str], where: str) -> None:
    """Raise InputError when `env` (table `where` of the node file) sets a variable that belongs to the plan."""
    for name in env:
        if name in REFUSED_ENV:
            raise InputError(f"{name} is refused: {REFUSED_ENV[name]}", where=f"key {where}.{name}")


def flag_args(args: Mapping[str, FlagValue]) -> Iterator[str]:
    """Yield argv items: true -> the bare flag, false -> nothing, a list -> the flag and each item."""
    for flag, value in args.items():
        if value is False:
            continue
        yield f"--{flag}"
        if value is True:
            continue
        if isinstance(value, list):
            yield from (str(item) for item in value)
        else:
            yield str(value)
