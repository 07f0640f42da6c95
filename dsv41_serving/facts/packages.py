"""Which packages are installed beside this one, read from their metadata and sources; nothing is imported."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from dsv41_serving.facts import files


class LockDifference(BaseModel):
    """One package that is not as the lock file says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    wanted: str
    found: str | None
    """None: not installed."""


class Packages(BaseModel):
    """The environment of the interpreter that runs this."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    python: tuple[int, int]
    versions: dict[str, str]
    """Installed version by normalised name."""
    locked: int | None
    """Packages in the lock file; None when this installation has no lock file."""
    differences: tuple[LockDifference, ...]
    torch_cuda: str | None
    """CUDA version torch was built for; None for a build without CUDA or without torch."""
    engine_plugins: dict[str, str]
    """Entry points in `sglang.srt.plugins`: name to the distribution that brings it."""
    reasoning_parsers: tuple[str, ...]
    """Names the installed engine knows, empty when it is not installed."""
    tool_parsers: tuple[str, ...]


def read_packages(lock: Path | None) -> Packages:
    """Return what is installed, compared with the lock file `lock` (pip's requirements format with `==`)."""
    versions = {_normalise(each.metadata["Name"]): each.version for each in metadata.distributions()}
    locked = {} if lock is None else _read_lock(lock)
    differences = (
        LockDifference(name=name, wanted=" or ".join(wanted.versions), found=versions.get(name))
        for name, wanted in sorted(locked.items())
        if versions.get(name) not in wanted.versions and not (wanted.conditional and name not in versions)
    )
    return Packages(
        python=sys.version_info[:2],
        versions=versions,
        locked=len(locked) if lock is not None else None,
        differences=tuple(differences),
        torch_cuda=_read_torch_cuda(),
        engine_plugins={
            each.name: each.dist.metadata["Name"] if each.dist else "unknown"
            for each in metadata.entry_points(group="sglang.srt.plugins")
        },
        reasoning_parsers=_read_names("sglang", "srt/parser/reasoning_parser_names.py"),
        tool_parsers=_read_names("sglang", "srt/function_call/parser_names.py"),
    )


def _normalise(name: str) -> str:
    """Return a distribution name as PEP 503 spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


class _Locked(NamedTuple):
    """What the lock file says of one package: each version that some machine gets, and whether some get none."""

    versions: tuple[str, ...]
    conditional: bool


def _read_lock(path: Path) -> dict[str, _Locked]:
    found: dict[str, _Locked] = {}
    lines = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)\s*(;?)", path.read_text(encoding="utf-8"), re.MULTILINE)
    for name, version, marker in lines:
        key = _normalise(name)
        earlier = found.get(key, _Locked((), conditional=True))
        found[key] = _Locked((*earlier.versions, version), earlier.conditional and bool(marker))
    return found


def _locate(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _read_torch_cuda() -> str | None:
    directory = _locate("torch")
    text = (files.read_text(directory / "version.py") if directory else None) or ""
    found = re.search(r"^cuda[^=\n]*= '([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else None


def _read_names(package: str, file: str) -> tuple[str, ...]:
    """Return the quoted names of a module that holds nothing but a list of names."""
    directory = _locate(package)
    text = (files.read_text(directory / file) if directory else None) or ""
    return tuple(re.findall(r'^\s+"([\w.-]+)",?$', text, re.MULTILINE))
