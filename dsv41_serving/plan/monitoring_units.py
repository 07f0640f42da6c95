"""Units of what watches a node: the exporter, and the timers of canary and contract watch. Pure text."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from dsv41_serving.credential import API_KEY
from dsv41_serving.plan.model import RenderedFile
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Installation, Plan
    from dsv41_serving.spec.model import NodeSpec

UNIT_DIR = "/etc/systemd/system"
STARTED_WITH_TARGET = "dsv41-exporter.service dsv41-canary.timer dsv41-contract.timer"
_UNITS = ("exporter.service", "canary.service", "canary.timer", "contract.service", "contract.timer")


def monitoring_units(spec: NodeSpec, plan: Plan, installation: Installation) -> tuple[RenderedFile, ...]:
    """Return the units; `systemd/` explains each directive."""
    room = data_dir("systemd")
    keys = [
        f"LoadCredential={name}:{file}" for name, file in sorted(plan.router.credentials.items()) if name == API_KEY
    ]
    values = {
        "node": plan.node,
        "user": spec.node.user,
        "python": installation.python,
        "plan_file": installation.plan_file,
        "release": installation.release,
        "state_dir": plan.state_dir,
        "interval": f"{spec.monitoring.canary_interval_s:g}",
        "credentials": "\n".join(keys) or "# The router asks for no key.",
        "hardening": (room / "hardening.in").read_text(encoding="utf-8").strip(),
    }
    return tuple(
        RenderedFile(
            path=f"{UNIT_DIR}/dsv41-{name}",
            text=Template((room / f"{name}.in").read_text(encoding="utf-8")).substitute(values),
        )
        for name in _UNITS
    )
