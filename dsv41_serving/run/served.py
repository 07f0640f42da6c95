"""Lay out the directory the engines load: links into the checkpoint, and the contract's generation defaults."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from dsv41_serving.plan.model import ServedModel

GENERATION_CONFIG = "generation_config.json"
# Long enough for an engine that has just been started to read every file of the directory it resolved.
_KEPT_S = 86400.0


def lay_out(model: ServedModel, checkpoint: Path) -> Path:
    """Make `model.path` serve `checkpoint`: every file a link, except generation_config.json.

    That file is the checkpoint's own with the contract's values on top; the checkpoint is not touched. `model.path` is a link
    to a directory that is never changed, so that an engine sees the whole of it at every moment. Raises InputError when the checkpoint cannot be read or
    the directory cannot be written.
    """
    target = Path(model.path)
    try:
        entries = sorted(path for path in checkpoint.iterdir() if path.name != GENERATION_CONFIG)
        generation = {**_read_generation(checkpoint), **model.generation_config}
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})",
            where=f"{checkpoint}, key model.path",
            remedy="name a readable checkpoint directory",
        ) from None
    text = json.dumps(generation, indent=2, sort_keys=True) + "\n"
    if _is_current(target, entries, text):
        return target
    try:
        _replace(target, entries, text)
        _remove_old(target)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})",
            where=f"{target.parent}, key node.state_dir",
            remedy="make room there for this user, or set another directory",
        ) from None
    return target


def _replace(target: Path, entries: list[Path], text: str) -> None:
    """Make a directory under a name of its own, then let `target`, a link, point to it: at no moment it points nowhere.

    Two engines that start together may both do this; they make the same.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    link = fresh.with_name(f"{fresh.name}.link")
    try:
        fresh.chmod(0o755)
        for entry in entries:
            (fresh / entry.name).symlink_to(entry.resolve())
        (fresh / GENERATION_CONFIG).write_text(text, encoding="utf-8")
        link.symlink_to(fresh.name)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)  # what a release before this one made
        link.replace(target)
    except BaseException:
        link.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _remove_old(target: Path) -> None:
    """Remove earlier directories behind `target`: no engine that is still loading has one of them."""
    for path in target.parent.glob(f".{target.name}.*"):
        if path.name != target.readlink().name and time.time() - path.lstat().st_mtime > _KEPT_S:
            shutil.rmtree(path, ignore_errors=True)


def _is_current(target: Path, entries: list[Path], text: str) -> bool:
    try:
        links = {path.name: path.resolve() for path in target.iterdir() if path.is_symlink()}
        return (
            links == {entry.name: entry.resolve() for entry in entries}
            and (target / GENERATION_CONFIG).read_text(encoding="utf-8") == text
        )
    except OSError:
        return False


def _read_generation(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / GENERATION_CONFIG
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON ({error})", where=str(path), remedy="restore the file of the checkpoint"
        ) from None
    return values if isinstance(values, dict) else {}
