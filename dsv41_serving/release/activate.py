"""Make a release current on this machine: its link, the files of its plan, and nothing left of releases long gone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.facts import read_facts
from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.plan.install import diff_files, differing, refuse_home, write_files
from dsv41_serving.plan.monitoring_units import UNIT_DIR
from dsv41_serving.spec import load_spec

if TYPE_CHECKING:
    from dsv41_serving.release.directory import Releases

_INSTALL_SECTION = "[Install]"


@dataclass(frozen=True)
class Activation:
    """What an activation changes, or would change."""

    before: str | None
    """Release that was current."""
    after: str
    files: list[str]
    """Paths written or removed."""
    diff: str
    """Unified diff of these files."""
    enabled: list[str]
    """Units of the plan that boot or another unit starts, in the order they start."""
    services: list[str]
    """Services of the plan, in the order they start."""
    restart: bool
    """Whether running services are no longer those of the plan: another release, a changed unit or node file."""
    removed: list[str]
    """Releases and environments that were deleted because they are too old."""

    def as_json(self) -> str:
        """Return the fields as JSON."""
        return json.dumps(asdict(self), indent=2)


def activate(releases: Releases, name: str, root: Path, *, dry_run: bool) -> Activation:
    """Make `name` the current release of the machine below `root` and write the files of its plan. Raises InputError.

    With `dry_run` nothing is written. To be run by the release's own interpreter: each release renders its own units.
    """
    plan = _plan(releases, name)
    refuse_home(plan)
    before = releases.current
    files, diff = [str(path) for path in differing(plan, root)], diff_files(plan, root)
    removed: list[str] = []
    if not dry_run:
        write_files(plan, root)
        releases.activate(name)
        removed = releases.prune()
    return Activation(
        before=before,
        after=name,
        files=files,
        diff=diff,
        enabled=[Path(file.path).name for file in plan.files if _is_unit(file.path) and _INSTALL_SECTION in file.text],
        services=[f"dsv41-{service.name}.service" for service in plan.services],
        restart=before != name or any(_is_unit(path) or path.endswith(("/node.toml", "/plan.json")) for path in files),
        removed=removed,
    )


def _plan(releases: Releases, name: str) -> Plan:
    loaded = load_spec(releases.path(name) / "node.toml")
    # Through the link, so that units stay the same from release to release.
    python = releases.root / "current" / "venv" / "bin" / "python"
    made = make_plan(loaded, read_facts(Path("/")), Installation(python=str(python), release=name))
    refuse_home(made)
    return made


def _is_unit(path: str) -> bool:
    return UNIT_DIR in path
