"""The releases of a node: which are installed, which is current, and the atomic step from one to another.

ROOT/releases/NAME/{venv,node.toml,release.json,.complete}    one release, complete or not there
ROOT/environments/HASH                                        third-party packages, shared
ROOT/current -> releases/NAME                                 what the units run
ROOT/history                                                  one line for every activation: time and name
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dsv41_serving.errors import InputError

KEEP = 3


def running_release() -> str | None:
    """Return the name of the installed release that this interpreter belongs to; None in a checkout."""
    home = Path(sys.prefix).resolve().parent
    return home.name if (home / ".complete").exists() and home.parent.name == "releases" else None


@dataclass(frozen=True)
class Releases:
    """The release directory below `root`."""

    root: Path

    @property
    def current(self) -> str | None:
        """Name of the current release; None on a machine that has none."""
        try:
            return (self.root / "current").readlink().name
        except FileNotFoundError:
            return None

    def installed(self) -> list[str]:
        """Return the complete releases, the one activated last first, those never activated at the end."""
        names = sorted(path.parent.name for path in self.root.glob("releases/*/.complete"))
        order = [name for _, name in reversed(self.history())]
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def history(self) -> list[tuple[str, str]]:
        """Return (time, name) of every activation, oldest first."""
        try:
            lines = (self.root / "history").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [(when, name) for when, _, name in (line.partition(" ") for line in lines)]

    def path(self, name: str) -> Path:
        """Return the directory of release `name`. Raises InputError when it is not installed."""
        release = self.root / "releases" / name
        if not (release / ".complete").exists():
            known = ", ".join(self.installed()) or "none"
            raise InputError(
                f"release '{name}' is not installed", where=str(self.root), remedy=f"installed are: {known}"
            )
        return release

    def previous(self) -> str:
        """Return the release that was current before this one and still can be. Raises InputError when there is none."""
        for name in self.installed():
            if name != self.current and not self.failure(name) and any(name == old for _, old in self.history()):
                return name
        raise InputError("there is no earlier release to go back to", where=str(self.root), remedy="deploy one")

    def failure(self, name: str) -> str:
        """Return why release `name` was given up; '' when it was not."""
        try:
            return (self.root / "releases" / name / "failed").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def mark_failed(self, name: str, reason: str) -> None:
        """Remember that `name` did not serve: no rollback goes to it. Activating it by name is still possible."""
        (self.path(name) / "failed").write_text(f"{reason}\n", encoding="utf-8")

    def activate(self, name: str) -> None:
        """Make `name` the current release in one atomic step, and write it down. Raises InputError."""
        target = self.path(name)
        if self.current == name:
            return
        link = self.root / ".current"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("releases") / name)
        with (self.root / "history").open("a", encoding="utf-8") as history:
            history.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {name}\n")
            history.flush()
            os.fsync(history.fileno())
        (target / "failed").unlink(missing_ok=True)
        link.replace(self.root / "current")

    def prune(self, keep: int = KEEP) -> list[str]:
        """Remove all but the `keep` releases activated last, and environments no release uses; return their names."""
        kept = {name for name in (self.current, *self.installed()[:keep]) if name}
        removed = []
        for release in sorted((self.root / "releases").glob("*")):
            if release.name not in kept:
                shutil.rmtree(release)
                removed.append(release.name)
        used = {(self.path(name) / ".complete").read_text(encoding="utf-8").strip() for name in kept}
        for environment in sorted((self.root / "environments").glob("*")):
            if environment.name not in used:
                shutil.rmtree(environment)
                removed.append(environment.name)
        return removed
