"""Lay out the directory the engines load: links into the checkpoint, and the contract's generation defaults."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from dsv41_serving.plan.model import ServedModel

GENERATION_CONFIG = "generation_config.json"


def lay_out(model: ServedModel, checkpoint: Path) -> Path:
    """Make `model.path` serve `checkpoint`: every file a link, except generation_config.json.

    That file is the checkpoint's own with the contract's values on top; the checkpoint is not touched. The directory is
    replaced as a whole, so that an engine never sees half of it. Raises InputError when the checkpoint cannot be read or
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
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})",
            where=f"{target.parent}, key node.state_dir",
            remedy="make room there for this user, or set another directory",
        ) from None
    return target


def _replace(target: Path, entries: list[Path], text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        fresh.chmod(0o755)
        for entry in entries:
            (fresh / entry.name).symlink_to(entry.resolve())
        (fresh / GENERATION_CONFIG).write_text(text, encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


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
