"""Find what is wrong with a model directory before an engine spends minutes on finding it out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv41_serving.embedded import special_tokens
from dsv41_serving.embedded.manifest import FILE_NAME, FileEntry, hash_file, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dsv41_serving.embedded.description import Checkpoint

_INDEX = "model.safetensors.index.json"
_HEADER_LIMIT = 100_000_000  # bytes; the safetensors library refuses longer headers


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a model."""

    what: str
    where: str
    remedy: str

    def __str__(self) -> str:
        """Return one line: where, what, and what to do."""
        return f"{self.where}: {self.what}; {self.remedy}"


def verify_model(path: Path, *, checkpoint: Checkpoint | None = None, full: bool = False) -> list[Problem]:
    """Return what is wrong with the model in directory `path`; an empty list means that it can be served.

    Sizes and structure are always compared: with the manifest of a prepared model, with `checkpoint` for a production
    one, and with the tensors that each safetensors file says it holds. `full` also computes every known sha256.
    """
    remedy = f"fetch it again at revision {checkpoint.revision}" if checkpoint else "prepare or fetch the model again"
    try:
        names = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return [Problem("the model directory does not exist", str(path), remedy)]
    except NotADirectoryError:
        return [Problem("is a file, not a model directory", str(path), "name the directory that holds config.json")]
    except PermissionError:
        return [Problem("the model directory cannot be read", str(path), "let the service's user read and enter it")]
    problems = list(_compare_manifest(path, names, remedy, full=full))
    problems += _check_config(path, checkpoint, remedy)
    problems += _check_tokenizer(path, remedy)
    problems += _check_weights(path, names, checkpoint, remedy)
    if checkpoint and isinstance(checkpoint.files, dict) and full:
        problems += _compare_digests(path, checkpoint.files, remedy)
    # A file may fail in several ways; the first, most general line about it is enough.
    first_about: dict[str, Problem] = {}
    for problem in problems:
        first_about.setdefault(problem.where, problem)
    return list(first_about.values())


def _compare_manifest(path: Path, names: set[str], remedy: str, *, full: bool) -> Iterator[Problem]:
    if FILE_NAME not in names:
        return
    try:
        manifest = read_manifest(path)
    except (OSError, ValueError):
        yield Problem("the manifest cannot be read or is damaged", str(path / FILE_NAME), remedy)
        return
    for name, entry in manifest.files.items():
        yield from _compare_file(path / name, entry, remedy, full=full)


def _compare_file(file: Path, entry: FileEntry, remedy: str, *, full: bool) -> Iterator[Problem]:
    try:
        size = file.stat().st_size
        if size != entry.size_bytes:
            yield Problem(f"has {size} bytes instead of {entry.size_bytes}", str(file), remedy)
        elif full and hash_file(file) != entry.sha256:
            yield Problem("differs from the manifest's sha256", str(file), remedy)
    except FileNotFoundError:
        yield Problem("is missing", str(file), remedy)
    except PermissionError:
        yield Problem("cannot be read", str(file), "let the service's user read it")


def _compare_digests(path: Path, digests: dict[str, str], remedy: str) -> Iterator[Problem]:
    for name, digest in digests.items():
        file = path / name
        if not file.is_file():
            yield Problem("is missing", str(file), remedy)
        elif hash_file(file) != digest:
            yield Problem("differs from the pinned sha256", str(file), remedy)


def _load_json(file: Path, remedy: str) -> tuple[Any, list[Problem]]:
    try:
        return json.loads(file.read_bytes()), []
    except FileNotFoundError:
        return None, [Problem("is missing", str(file), remedy)]
    except PermissionError:
        return None, [Problem("cannot be read", str(file), "let the service's user read it")]
    except ValueError:
        return None, [Problem("is not valid JSON (truncated?)", str(file), remedy)]


def _check_config(path: Path, checkpoint: Checkpoint | None, remedy: str) -> list[Problem]:
    file = path / "config.json"
    config, problems = _load_json(file, remedy)
    if checkpoint and isinstance(config, dict):
        text = config.get("text_config") or {}
        for key, wanted in checkpoint.config.items():
            found = config.get(key, text.get(key))
            if found != wanted:
                return [
                    Problem(f"{key} is {found!r}, {checkpoint.name} has {wanted!r}", str(file), "name the right model")
                ]
    return problems


def _check_tokenizer(path: Path, remedy: str) -> list[Problem]:
    file = path / "tokenizer.json"
    tokenizer, problems = _load_json(file, remedy)
    if problems:
        return problems
    try:
        present = special_tokens.added_ids(tokenizer)
    except (KeyError, TypeError):
        return [Problem("has no added vocabulary", str(file), remedy)]
    missing = [token for token in special_tokens.REQUIRED if token not in present]
    if missing:
        return [
            Problem(f"the added vocabulary lacks {', '.join(missing)}", str(file), "use a tokenizer of DeepSeek-V4.1")
        ]
    return []


def _check_weights(path: Path, names: set[str], checkpoint: Checkpoint | None, remedy: str) -> Iterator[Problem]:
    shards = {name for name in names if name.endswith(".safetensors")}
    if _INDEX in names:
        index, problems = _load_json(path / _INDEX, remedy)
        yield from problems
        listed = set(index["weight_map"].values()) if isinstance(index, dict) and "weight_map" in index else set()
        for name in sorted(listed - shards):
            yield Problem("is missing", str(path / name), remedy)
    # A manifest lists what belongs there: a synthetic model has none.
    elif not shards and FILE_NAME not in names:
        yield Problem("there are no weights (*.safetensors)", str(path), remedy)
    if checkpoint and shards and len(shards) != checkpoint.weight_files:
        yield Problem(f"has {len(shards)} weight files instead of {checkpoint.weight_files}", str(path), remedy)
    for name in sorted(shards):
        yield from _check_safetensors(path / name, remedy)


def _check_safetensors(file: Path, remedy: str) -> Iterator[Problem]:
    """Compare the size of a safetensors file with its header: 8 bytes of header length, the header, the tensors."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(header_bytes, _HEADER_LIMIT)))
        data_bytes: int = max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
    except PermissionError:
        yield Problem("cannot be read", str(file), "let the service's user read it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        yield Problem("is not a safetensors file or is truncated", str(file), remedy)
    else:
        expected = 8 + header_bytes + data_bytes
        if size != expected:
            yield Problem(f"is truncated or damaged: {size} bytes instead of {expected}", str(file), remedy)
