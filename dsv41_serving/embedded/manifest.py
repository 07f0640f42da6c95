"""The manifest of a prepared model: which files it consists of, from which inputs, with which proven quality."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "manifest.json"


class FileEntry(BaseModel):
    """Size and digest of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int
    sha256: str


class Manifest(BaseModel):
    """Stands as manifest.json beside the files it lists. It holds no date, so equal inputs give equal bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    summary: str
    key: str
    """sha256 of the inputs (`Description.key`)."""
    source: str
    """Package, version and digest of the file the model was made from."""
    licence: str
    environment: dict[str, str]
    """What besides the inputs can alter bits: the processor and the libraries."""
    check: dict[str, float | int]
    """The numbers of the held-out check; empty for random weights."""
    files: dict[str, FileEntry]

    def write(self, directory: Path) -> None:
        """Write the manifest into `directory`."""
        (directory / FILE_NAME).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest in `directory`. Raises OSError when it cannot be read, ValueError when it is damaged."""
    return Manifest.model_validate_json((directory / FILE_NAME).read_bytes())


def list_files(directory: Path) -> dict[str, FileEntry]:
    """Return name → entry of every file in `directory` but the manifest, sorted by name."""
    return {
        path.name: FileEntry(size_bytes=path.stat().st_size, sha256=hash_file(path))
        for path in sorted(directory.iterdir())
        if path.name != FILE_NAME
    }


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
