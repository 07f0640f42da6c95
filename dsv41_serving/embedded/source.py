"""Locate the file that a model is made from, inside an installed package, without importing the package."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.embedded.manifest import hash_file
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from dsv41_serving.embedded.description import Source


def locate(source: Source) -> Path:
    """Return the path of `source`'s file, after its version, size and sha256 were found right.

    Raises InputError when the package is not installed, has another version or its file is damaged.
    """
    requirement = f"{source.package}=={source.version}"
    remedy = f"install {requirement}, which is part of dsv41-serving[embedded]"
    spec = importlib.util.find_spec(source.module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the package is not installed", where=requirement, remedy=remedy)
    installed = metadata.version(source.package)
    if installed != source.version:
        raise InputError(f"version {installed} is installed", where=requirement, remedy=remedy)
    file = Path(spec.submodule_search_locations[0]) / source.file
    if not file.is_file():
        raise InputError("is missing from the installed package", where=str(file), remedy=remedy)
    size = file.stat().st_size
    if size != source.size_bytes:
        raise InputError(f"has {size} bytes instead of {source.size_bytes}", where=str(file), remedy=remedy)
    if hash_file(file) != source.sha256:
        raise InputError("differs from the pinned sha256", where=str(file), remedy=remedy)
    return file
