"""Units of what watches a node: the exporter, and the timers of canary and contract watch. Pure text."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from dsv41_serving.credential import API_KEY
from dsv41_serving.plan.model import RenderedFile
from dsv41_serving.resources import data_dir
from dsv41_serving.spec.model import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.plan.model import Installation, Plan
    from dsv41_serving.spec.model import NodeSpec

UNIT_DIR = "/etc/systemd/system"
_ON_EVERY_HOST = ("exporter.service",)
# They ask the router.
_BESIDE_THE_ROUTER = ("canary.service", "canary.timer", "contract.service", "contract.timer")
_STARTED = (".timer", "exporter.service")


def started_with_target(plan: Plan) -> str:
    """Return the units of this room that the target starts, by name."""
    return " ".join(f"dsv41-{unit}" for unit in _units(plan) if unit.endswith(_STARTED))


def address_lines(addresses: Iterable[str]) -> str:
    """Return the directives that let a unit talk to this machine and to `addresses` alone."""
    return f"IPAddressDeny=any\nIPAddressAllow={' '.join(['localhost', *addresses])}"


def monitoring_units(spec: NodeSpec, plan: Plan, installation: Installation) -> tuple[RenderedFile, ...]:
    """Return the units; `systemd/` explains each directive."""
    room = data_dir("systemd")
    keys = [
        f"LoadCredential={name}:{file}" for name, file in sorted(plan.router.credentials.items()) if name == API_KEY
    ]
    router = [] if plan.router.address in (*LOOPBACK, *plan.hosts.values()) else [plan.router.address]
    values = {
        "node": plan.node,
        "user": spec.node.user,
        "python": installation.python,
        "plan_file": installation.plan_file,
        "release": installation.release,
        "state_dir": plan.state_dir,
        "interval": f"{spec.monitoring.canary_interval_s:g}",
        "credentials": "\n".join(keys) or "# The router asks for no key.",
        "addresses": address_lines([*plan.hosts.values(), *router]),
        "hardening": (room / "hardening.in").read_text(encoding="utf-8").strip(),
    }
    return tuple(
        RenderedFile(
            path=f"{UNIT_DIR}/dsv41-{name}",
            text=Template((room / f"{name}.in").read_text(encoding="utf-8")).substitute(values),
        )
        for name in _units(plan)
    )


def _units(plan: Plan) -> tuple[str, ...]:
    return (*_ON_EVERY_HOST, *(_BESIDE_THE_ROUTER if plan.has_router else ()))
