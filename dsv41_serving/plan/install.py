"""Write the files of a plan below a root, and compare them with what is there. The only part of `plan` that does I/O.

One of the files lists all of them, so that what an earlier plan wrote and this one does not have is found and removed.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.plan.files import FILE_LIST
from dsv41_serving.plan.model import Plan, RenderedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below them a unit sees nothing: ProtectHome=yes.
_HOMES = ("/home", "/root", "/run/user")
_PLACES = {"node.state_dir": "/var/lib/dsv41", "node.cache_dir": "/var/cache/dsv41"}


def refuse_home(plan: Plan) -> None:
    """Raise InputError when the directories of `plan` lie in somebody's home, which its hardened units cannot see."""
    hidden = {
        key: directory
        for key, directory in (("node.state_dir", plan.state_dir), ("node.cache_dir", plan.cache_dir))
        if any(Path(directory).is_relative_to(home) for home in _HOMES)
    }
    if hidden:
        options = " ".join(f"--set {key}={_PLACES[key]}" for key in hidden)
        raise InputError(
            f"{' and '.join(map(repr, hidden.values()))}: in a home directory, which the units may not enter",
            where=f"key {' and '.join(hidden)}",
            remedy=f"set it in the node file, or here: dsv41 {options} ... render",
        )


def write_files(plan: Plan, root: Path) -> list[Path]:
    """Make what lies below `root` agree with `plan`, each file atomically; return the paths that changed.

    Raises InputError.
    """
    changed = []
    for path, _, file in _compare(plan, root):
        try:
            if file is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, file)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})",
                where=str(path),
                remedy="choose a --root this user may write to",
            ) from None
        changed.append(path)
    return changed


def read_plan(path: Path) -> Plan:
    """Return the plan stored in `path`. Raises InputError when it is absent, or was written by another release."""
    try:
        return Plan.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"the stored plan cannot be read ({error.strerror})", where=str(path), remedy="write it with `dsv41 render`"
        ) from None
    except ValueError:
        raise InputError(
            "is not a plan of this release", where=str(path), remedy="write it anew with `dsv41 render`"
        ) from None


def differing(plan: Plan, root: Path) -> list[Path]:
    """Return the paths below `root` that `write_files` would change."""
    return [path for path, _, _ in _compare(plan, root)]


def diff_files(plan: Plan, root: Path) -> str:
    """Return a unified diff from what is installed below `root` to what the plan says; '' when they agree."""
    parts: list[str] = []
    for path, installed, file in _compare(plan, root):
        parts += difflib.unified_diff(
            [] if installed is None else installed.splitlines(keepends=True),
            [] if file is None else file.text.splitlines(keepends=True),
            fromfile=str(path) if installed is not None else "/dev/null",
            tofile=f"{file.path} (plan)" if file is not None else "/dev/null",
        )
    return "".join(parts)


def _compare(plan: Plan, root: Path) -> Iterator[tuple[Path, str | None, RenderedFile | None]]:
    """Yield (path, installed text, file of the plan) wherever the two differ.

    What the plan no longer has comes first: should a write be interrupted then, the old list still names the rest.
    """
    wanted = {locate(file, root): file for file in plan.files}
    listed = locate(RenderedFile(path=FILE_LIST, text=""), root)
    stale = {root / line.lstrip("/") for line in (_read(listed) or "").splitlines()} - wanted.keys()
    for path in sorted(stale):
        installed = _read(path)
        if installed is not None:
            yield path, installed, None
    for path, file in wanted.items():
        installed = _read(path)
        if installed != file.text:
            yield path, installed, file


def locate(file: RenderedFile, root: Path) -> Path:
    """Return where `file` lies below `root`."""
    return root / file.path.lstrip("/")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read ({error})", where=str(path), remedy="make it readable for this user"
        ) from None


def _replace(target: Path, file: RenderedFile) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(file.text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(file.mode)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
