"""Plans whose services are `fake_service.py`, on free ports of this machine."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsv41_serving.plan.model import Placement, Plan, ServedModel, Service
from dsv41_serving.run.record import Records, ServiceRecord, own_start_ticks
from dsv41_serving.spec.model import Contract
from dsv41_serving.spec.monitoring import Monitoring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.run.record import ServiceState

PROGRAM = Path(__file__).with_name("fake_service.py")
ANYWHERE = Placement(gpus=(), numa_node=None, cpus=())
Kind = Literal["prefill", "decode", "router"]
KINDS: tuple[Kind, ...] = ("prefill", "decode", "router")


def find_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def report_of(contract: Contract) -> dict[str, Any]:
    """Return what an engine that holds `contract` answers at /contract."""
    return {
        "contract": contract.model_dump(),
        "fingerprint": "0" * 64,
        "in_force": {
            "served_model_name": contract.served_model_name,
            "reasoning_parser": contract.reasoning_parser,
            "tool_call_parser": contract.tool_call_parser,
            "thinking": contract.thinking,
            "reasoning_effort": str(contract.reasoning_effort),
            "sampling": {"temperature": contract.temperature, "top_p": contract.top_p},
            "context_length": 8192,
            "strict_thinking": contract.max_thinking_tokens > 0,
            "cache_report": contract.cache_report,
        },
        "versions": {"sglang": "0.5.23"},
    }


def fake_plan(
    state_dir: Path, faults: Mapping[str, Mapping[str, Any]] | None = None, *, drain_timeout_s: float = 60.0
) -> Plan:
    """Return a pair and a router; `faults` are settings by service."""
    ports = dict(zip(KINDS, find_ports(len(KINDS)), strict=True))
    engines = [f"http://127.0.0.1:{ports[kind]}" for kind in KINDS if kind != "router"]
    services = []
    for kind in KINDS:
        settings: dict[str, Any] = {"port": ports[kind], "contract": report_of(Contract())}
        if kind == "router":
            settings |= {"engines": engines, "serving": "Activated 1 worker(s) (marked as healthy)"}
        settings |= (faults or {}).get(kind, {})
        services.append(
            Service(
                name=kind,
                kind=kind,
                argv=(sys.executable, "-I", "-S", str(PROGRAM), json.dumps(settings)),
                env={},
                placement=ANYWHERE,
                host="127.0.0.1",
                port=ports[kind],
                ports={"http": ports[kind]},
                metrics_url=f"http://127.0.0.1:{ports[kind]}/metrics",
                after=("prefill", "decode") if kind == "router" else (),
                start_timeout_s=60.0,
                drain_timeout_s=drain_timeout_s,
            )
        )
    return Plan(
        node="test",
        profile="embedded",
        shape="pd",
        state_dir=str(state_dir),
        cache_dir=str(state_dir / "cache"),
        served_model_name="deepseek-v4.1-flash",
        contract=Contract(),
        monitoring=Monitoring(),
        model=ServedModel(manifest="toy", checkpoint="", path="", generation_config={}),
        services=tuple(services),
        memory=(),
        files=(),
    )


def record_services(plan: Plan, **states: ServiceState) -> None:
    """Record every service of `plan` as looked after by this process, ready unless `states` says otherwise."""
    for service in plan.services:
        state = states.get(service.name, "ready")
        record = ServiceRecord(
            name=service.name,
            kind=service.kind,
            state=state,
            phase=state,
            supervisor_pid=os.getpid(),
            supervisor_start_ticks=own_start_ticks(),
            port=service.port,
            url=service.url,
            metrics_url=service.metrics_url,
            model=plan.served_model_name,
            started_at=0.0,
            phase_at=0.0,
        )
        Records(plan.state_dir).write_service(record)
