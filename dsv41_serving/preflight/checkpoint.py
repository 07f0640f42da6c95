"""The model as it lies on this machine: what is missing, how large it is, how fast the disk gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.embedded import load_description, verify_model
from dsv41_serving.embedded.description import Checkpoint
from dsv41_serving.embedded.manifest import FILE_NAME
from dsv41_serving.facts.directory import measure_read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.embedded.verify import Problem
    from dsv41_serving.spec.model import NodeSpec

_KEY_DIGITS = 12


@dataclass(frozen=True)
class CheckpointFacts:
    """What was found."""

    name: str
    path: str
    """Empty for an embedded model that is not made yet."""
    problems: tuple[Problem, ...] = ()
    hashed: bool = False
    """Whether every known digest was compared."""
    has_digests: bool = False
    files: int = 0
    size_bytes: int = 0
    to_make_bytes: int = 0
    """Room that making it will take; 0 when it is there."""
    read_bytes_per_s: float | None = None
    revision: str = ""
    """The revision the manifest describes; empty for an embedded model."""
    former_revisions: Mapping[str, str] = field(default_factory=dict)


def read_checkpoint(spec: NodeSpec, *, hashes: bool) -> CheckpointFacts:
    """Return what is known of the model `spec` serves; `hashes` also compares every digest, which reads all of it.

    Raises InputError when there is no manifest of that name.
    """
    description = load_description(spec.model.name)
    wanted = description if isinstance(description, Checkpoint) else None
    path = locate_model(spec)
    revision = wanted.revision if wanted else ""
    former = wanted.former_revisions if wanted else {}
    if path is None:
        size = 0 if isinstance(description, Checkpoint) else description.size_mb * 1_000_000
        return CheckpointFacts(
            name=description.name, path="", to_make_bytes=size, revision=revision, former_revisions=former
        )
    problems = tuple(verify_model(path, checkpoint=wanted, full=hashes))
    weights = sorted(path.glob("*.safetensors"), key=lambda each: each.stat().st_size) if path.is_dir() else []
    entries = [entry for entry in path.iterdir() if entry.is_file()] if path.is_dir() else []
    return CheckpointFacts(
        name=description.name,
        path=str(path),
        problems=problems,
        hashed=hashes,
        has_digests=(path / FILE_NAME).is_file() if wanted is None else isinstance(wanted.files, dict),
        files=len(entries),
        size_bytes=sum(entry.stat().st_size for entry in entries),
        read_bytes_per_s=measure_read(weights[-1]) if weights else None,
        revision=revision,
        former_revisions=former,
    )


def locate_model(spec: NodeSpec) -> Path | None:
    """Return where the model of `spec` lies, or None when it is an embedded one that has yet to be made."""
    description = load_description(spec.model.name)
    if spec.model.path or isinstance(description, Checkpoint):
        return Path(spec.model.path)
    try:
        key = description.key()
    except PackageNotFoundError:
        return None  # nothing could have made it without torch
    path = Path(spec.node.cache_dir) / "models" / f"{description.name}-{key[:_KEY_DIGITS]}"
    return path if path.is_dir() else None
