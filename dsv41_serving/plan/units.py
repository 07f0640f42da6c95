"""The systemd side of an installation: services, target, slices, the user and its directories. Pure text.

`systemd/` holds the templates and explains each directive.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from dsv41_serving.plan.model import RenderedFile
from dsv41_serving.plan.monitoring_units import UNIT_DIR, address_lines, started_with_target
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsv41_serving.plan.model import Installation, Plan, Service
    from dsv41_serving.spec.load import LoadedSpec

# Rendered as they are, whatever the shape.
FIXED = ("dsv41.slice", "dsv41-engines.slice", "dsv41-infra.slice")
# A directive with nothing to say is left out rather than written empty.
_MAY_BE_EMPTY = {"Requires=", "After=", "PartOf="}
ENGINE_RESTART_S = 10
ROUTER_RESTART_S = 5
# Beyond the drains: what an engine needs to release its memory, and before it those that write into it.
STOP_SLACK_S = 70


def render_units(loaded: LoadedSpec, plan: Plan, installation: Installation) -> list[RenderedFile]:
    """Return every file that systemd reads."""
    common = {
        "node": plan.node,
        "user": loaded.spec.node.user,
        "python": installation.python,
        "plan_file": installation.plan_file,
        "release": installation.release,
        "state_dir": plan.state_dir,
        "cache_dir": plan.cache_dir,
    }
    texts = {
        "/etc/sysusers.d/dsv41.conf": _fill("sysusers.conf", common),
        "/etc/tmpfiles.d/dsv41.conf": _fill("tmpfiles.conf", common),
        f"{UNIT_DIR}/dsv41.target": _fill(
            "dsv41.target",
            {**common, "services": f"{_names(s.name for s in plan.services)} {started_with_target(plan)}"},
        ),
        **{f"{UNIT_DIR}/{unit}": _fill(unit, common) for unit in FIXED},
        **{f"{UNIT_DIR}/dsv41-{s.name}.service": _service(plan, s, common) for s in plan.services},
    }
    return [RenderedFile(path=path, text=text) for path, text in texts.items()]


def credential_lines(credentials: Mapping[str, str]) -> str:
    """Return the directives that hand a unit its secrets: systemd reads the files as root and passes copies."""
    lines = [f"LoadCredential={name}:{file}" for name, file in sorted(credentials.items())]
    return "\n".join(lines) or "# No credentials: this unit needs no secret."


def _service(plan: Plan, service: Service, common: Mapping[str, str]) -> str:
    is_engine = service.is_engine
    return _fill(
        "engine.service" if is_engine else "router.service",
        {
            **common,
            "name": service.name,
            "kind": service.kind,
            "peers": _names(peer.name for peer in plan.peers(service)),
            # Workers of other hosts have no unit here: the supervisor of the router waits for them.
            "requires": _names(name for name in service.after if plan.service(name) in plan.services),
            "numa": _numa_lines(service),
            "credentials": credential_lines(service.credentials),
            "addresses": _address_lines(plan, service),
            "start_timeout": f"{service.start_timeout_s:.0f}",
            "stop_timeout": f"{plan.stop_bound_s(service) + STOP_SLACK_S:.0f}",
            "restart_delay": str(ENGINE_RESTART_S if is_engine else ROUTER_RESTART_S),
        },
    )


def _numa_lines(service: Service) -> str:
    node = service.placement.numa_node
    if node is None:
        return "# No NUMA binding: this engine has no single node of its own."
    return f"NUMAPolicy=bind\nNUMAMask={node}\nCPUAffinity=numa"


def _address_lines(plan: Plan, service: Service) -> str:
    if service.credentials and not service.is_engine:
        return "# Clients come from other machines; the key decides who may."
    return address_lines(plan.hosts.values())


def _names(services: Iterable[str]) -> str:
    return " ".join(f"dsv41-{name}.service" for name in services)


def _fill(template: str, values: Mapping[str, str]) -> str:
    text = (data_dir("systemd") / f"{template}.in").read_text(encoding="utf-8")
    filled = Template(text).substitute(values)
    lines = (line.rstrip() for line in filled.split("\n"))
    return "\n".join(line for line in lines if line not in _MAY_BE_EMPTY)
