"""All checks, by family, in the order in which mending one makes the next worth reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.preflight import files, gpu, kernel, leftovers, links, memory, network, numa, settings, versions
from dsv41_serving.preflight.report import Answer, Report

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Check, Scene

CHECKS: dict[str, tuple[Check, ...]] = {
    "settings": settings.CHECKS,
    "versions": versions.CHECKS,
    "gpu": gpu.CHECKS,
    "links": links.CHECKS,
    "numa": numa.CHECKS,
    "memory": memory.CHECKS,
    "kernel": kernel.CHECKS,
    "files": files.CHECKS,
    "network": network.CHECKS,
    "leftovers": leftovers.CHECKS,
}


def run_checks(scene: Scene) -> Report:
    """Ask every check that applies to `scene`, and return the answers in order."""
    answers, silent = [], []
    for family, checks in CHECKS.items():
        for check in checks:
            outcome = check.judge(scene) if check.applies(scene) else None
            if outcome is None:
                silent.append(f"{family}.{check.name}")
            else:
                answers.append(Answer(f"{family}.{check.name}", outcome))
    return Report(answers=tuple(answers), not_applicable=tuple(silent))
