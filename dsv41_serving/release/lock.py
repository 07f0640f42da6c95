"""Take from requirements.lock the part that a node installs: what some extras of this project need, hashes included."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PROJECT = "dsv41-serving"
PYTHONS = ("3.11", "3.12")  # what requires-python allows; the lock serves both


def read_lock(text: str) -> dict[str, str]:
    """Return package name -> its lines of a lock file, hashes included; several when they differ by marker."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        if "==" not in entry or entry.startswith("#"):
            continue
        name = canonicalize_name(re.split(r"[=\[ ]", entry, maxsplit=1)[0])
        entries[name] = f"{entries.get(name, '')}{entry.rstrip()}\n"
    return entries


def select(lock: Mapping[str, str], extras: Sequence[str], *, root: str = PROJECT) -> str:
    """Return the lines of `lock` that `root` with `extras` needs, sorted by name.

    What needs what is read from the packages installed here, which are those of the lock. A dependency that the lock does
    not name (another platform's, or one the lock leaves out on purpose) is not followed. Raises InputError for an extra
    that the project does not have.
    """
    known = {extra for line in requires(root) or () for extra in re.findall(r"extra == [\"']([^\"']+)[\"']", line)}
    for extra in extras:
        if extra not in known:
            raise InputError(f"there is no extra '{extra}'", where="--extra", remedy=f"use: {', '.join(sorted(known))}")
    chosen: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [(root, extra) for extra in ("", *extras)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in _requirements(name, extra):
            needed = canonicalize_name(requirement.name)
            if needed in lock:
                chosen.add(needed)
                pending += [(needed, further) for further in ("", *requirement.extras)]
    return "".join(lock[name] for name in sorted(chosen))


def _requirements(name: str, extra: str) -> Iterable[Requirement]:
    try:
        lines = requires(name) or ()
    except PackageNotFoundError:
        return  # of the other Python, or of another platform: its own needs are not known here
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate(
                {"extra": extra, "python_version": python, "python_full_version": f"{python}.0"}
            )
            for python in PYTHONS
        ):
            yield requirement
