"""Command of the router. Pure; the only place that knows the flags of sglang-router and of smg, which grew out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.credential import API_KEY, TLS_KEY
from dsv41_serving.errors import InputError
from dsv41_serving.plan.flags import REFUSED_BY_ROUTER, check_args, flag_args
from dsv41_serving.plan.model import Placement, Service, bracket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.spec.model import FlagValue, NodeSpec, Router


def plan_router(spec: NodeSpec, engines: Sequence[Service], *, python: str) -> Service:
    """Return the router service in front of `engines`, on whichever hosts they run. Raises InputError for a flag that may not be set by hand."""
    router = spec.router
    check_args(router.args, "router.args", REFUSED_BY_ROUTER)
    _check_thinking(spec)
    flags: dict[str, FlagValue] = {
        "host": bracket(router.host),
        "port": router.port,
        **_access_flags(router),
        "policy": router.policy,
        "prometheus-host": "127.0.0.1",
        "prometheus-port": router.metrics_port,
        "request-timeout-secs": router.request_timeout_s,
        "shutdown-grace-period-secs": int(router.drain_timeout_s),
        "max-concurrent-requests": router.max_concurrent_requests,
        "queue-timeout-secs": router.queue_timeout_s,
        "retry-max-retries": router.retries,
        "cb-failure-threshold": router.breaker_failures,
        "cb-timeout-duration-secs": router.breaker_open_s,
        "health-check-interval-secs": router.health_interval_s,
        "health-check-timeout-secs": router.health_timeout_s,
        "health-failure-threshold": router.health_failures,
        **({"disable-retries": True} if router.retries == 0 else {}),
        **(_smg_flags(spec, engines) if router.kind == "smg" else {}),
        **router.args,
    }
    return Service(
        name="router",
        kind="router",
        node=spec.host_of("router"),
        argv=(
            python,
            "-m",
            "dsv41_serving.run.launch_router",
            router.kind,
            *_worker_args(engines),
            *flag_args(flags),
            *_alias_args(spec),
        ),
        env={"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
        placement=Placement(gpus=(), numa_node=None, cpus=()),
        host=router.host,
        port=router.port,
        ports={"http": router.port, "metrics": router.metrics_port},
        metrics_url=f"http://127.0.0.1:{router.metrics_port}/metrics",
        after=tuple(engine.name for engine in engines),
        start_timeout_s=60.0,
        drain_timeout_s=router.drain_timeout_s,
        credentials=_credentials(router),
        tls_cert_file=router.tls_cert_file,
    )


def _credentials(router: Router) -> dict[str, str]:
    files = {API_KEY: router.api_key_file, TLS_KEY: router.tls_key_file}
    return {name: file for name, file in files.items() if file}


def _access_flags(router: Router) -> dict[str, FlagValue]:
    """Who may call. Secrets are named here and read by `run.launch_router`: a command line is public."""
    flags: dict[str, FlagValue] = {}
    if router.api_key_file:
        flags["api-key-file"] = router.api_key_file
    if router.tls_cert_file:
        flags |= {"tls-cert-path": router.tls_cert_file, "tls-key-path": router.tls_key_file}
    return flags


def _check_thinking(spec: NodeSpec) -> None:
    """Raise InputError when smg would turn thinking on against the table.

    To requests for a model of DeepSeek it adds the publisher's default where the client says nothing; it knows them by name.
    """
    contract = spec.contract
    known = [name for name in (contract.served_model_name, *contract.aliases) if "deepseek" in name.lower()]
    if spec.router.kind == "smg" and not contract.thinking and known:
        raise InputError(
            f"smg turns thinking on for '{known[0]}' whatever the table says",
            where="key contract.thinking",
            remedy='set router.kind = "sglang-router", or serve a name without "deepseek" in it',
        )


def _smg_flags(spec: NodeSpec, engines: Sequence[Service]) -> dict[str, FlagValue]:
    """Return what smg must be told and sglang-router does not know.

    By default smg leaves out a worker with 8 waiting requests or 80 % of its KV in use, and one that made no token for 3 s
    while its queue grows. Behind a pair there is no other: clients would get 503 instead of a place in the queue.
    In front of a pair it answers an unknown model with 503, as if the engines were gone; told that it may hold several
    models, with 404. In front of equals it does so anyway, and in that mode would not take workers from its command line.
    """
    return {
        **({"enable-igw": True} if any(engine.kind == "prefill" for engine in engines) else {}),
        "disable-worker-overload-protection": True,
        "worker-wedge-secs": spec.router.request_timeout_s,
        "pd-admission-wait-secs": spec.router.queue_timeout_s,
        "disable-tokenizer-autoload": True,
    }


def _alias_args(spec: NodeSpec) -> list[str]:
    """Return the aliases as smg wants them; sglang-router passes any name on, and the engines know theirs."""
    if spec.router.kind != "smg":
        return []
    name = spec.contract.served_model_name
    return [part for alias in spec.contract.aliases for part in ("--model-alias", f"{alias}={name}")]


def _worker_args(engines: Sequence[Service]) -> list[str]:
    prefill = [engine for engine in engines if engine.kind == "prefill"]
    decode = [engine for engine in engines if engine.kind == "decode"]
    if not prefill:
        return ["--worker-urls", *(engine.url for engine in engines)]
    args = ["--pd-disaggregation"]
    for engine in prefill:
        args += ["--prefill", engine.url, str(engine.ports["bootstrap"])]
    for engine in decode:
        args += ["--decode", engine.url]
    return args
