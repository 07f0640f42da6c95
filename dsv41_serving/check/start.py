"""What must hold before anything is started: versions, model, memory, ports. Every failure is one line; nothing is left behind."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dsv41_serving.embedded import load_description, prepare_model, verify_model
from dsv41_serving.embedded.description import Checkpoint
from dsv41_serving.errors import EngineDriftError, InputError
from dsv41_serving.plan.memory import budget_memory, check_budget
from dsv41_serving.plan.ports import find_conflicts
from dsv41_serving.sglang_plugin.drift import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41_serving.embedded import ModelName
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Plan, Service

# Hooks, flags, log texts and metric names of this project are those of exactly these versions.
PINNED = {**VERSIONS, "sglang-router": "0.3.2", "smg": "1.13.0"}


def check_versions() -> None:
    """Raise EngineDriftError when a pinned package is absent or of another version."""
    for package, wanted in PINNED.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            raise EngineDriftError(
                "is not installed", where=package, remedy=f"install {package} {wanted} from requirements.lock"
            ) from None
        if found != wanted:
            raise EngineDriftError(
                f"version {found} is installed, this release is written for {wanted}",
                where=package,
                remedy="install the environment from requirements.lock",
            )


def check_start(plan: Plan, facts: Facts, services: Sequence[Service]) -> None:
    """Raise InputError when memory is short for `services` or one of their ports is taken. Called right before their start.

    What else of the plan runs already is no longer in the memory that is available, so only `services` are counted.
    """
    check_budget(budget_memory([service for service in services if service.is_engine], facts), plan.profile)
    conflicts = find_conflicts(services, facts.listeners)
    if conflicts:
        raise conflicts[0]


def find_checkpoint(plan: Plan, report: Callable[[str], None], *, hashes: bool = False) -> Path:
    """Return the checkpoint directory of the plan, preparing an embedded model first when the plan names no path.

    Sizes and structure of every file are checked, with `hashes` every known sha256 too; an embedded model's always are.
    Raises InputError when the directory is missing, unreadable, truncated, or lacks what V4.1's encoder needs.
    """
    name = plan.model.manifest
    description = load_description(name)
    if not plan.model.checkpoint:
        if isinstance(description, Checkpoint):
            raise InputError(
                f"'{name}' is fetched, not made here",
                where="key model.path",
                remedy="set it to the directory of the checkpoint",
            )
        cache = Path(plan.cache_dir) / "models"
        try:
            return prepare_model(cast("ModelName", description.name), cache, report=report).path
        except OSError as error:
            raise InputError(
                f"the model cannot be prepared there ({error.strerror})",
                where=f"{cache}, key node.cache_dir",
                remedy="make room there for this user, or set another directory",
            ) from None
    checkpoint = description if isinstance(description, Checkpoint) else None
    problems = verify_model(Path(plan.model.checkpoint), checkpoint=checkpoint, full=hashes)
    if problems:
        first = problems[0]
        raise InputError(first.what, where=first.where, remedy=first.remedy)
    return Path(plan.model.checkpoint)
