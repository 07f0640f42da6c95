"""Write the files of a plan below a root, and compare them with what is there. The only part of `plan` that does I/O."""

from __future__ import annotations

import difflib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Plan, RenderedFile


def write_files(plan: Plan, root: Path) -> list[Path]:
    """Write every file of `plan` below `root`, each atomically; return those that changed. Raises InputError."""
    changed = []
    for file in plan.files:
        target = locate(file, root)
        if _read(target) == file.text:
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, file)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})",
                where=str(target),
                remedy="choose a --root this user may write to",
            ) from None
        changed.append(target)
    return changed


def diff_files(plan: Plan, root: Path) -> str:
    """Return a unified diff from what is installed below `root` to what the plan says; '' when they agree."""
    parts: list[str] = []
    for file in plan.files:
        target = locate(file, root)
        installed = _read(target)
        if installed == file.text:
            continue
        parts += difflib.unified_diff(
            [] if installed is None else installed.splitlines(keepends=True),
            file.text.splitlines(keepends=True),
            fromfile=str(target) if installed is not None else "/dev/null",
            tofile=f"{file.path} (plan)",
        )
    return "".join(parts)


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
