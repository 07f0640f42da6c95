"""Prepare an embedded model: find it in the cache, or make it from what the installed packages contain."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from dsv41_serving.embedded.cache import fetch_or_build
from dsv41_serving.embedded.description import Checkpoint, Converted, Random, Synthetic, load_description
from dsv41_serving.embedded.manifest import Manifest, list_files, read_manifest
from dsv41_serving.errors import InputError

ModelName = Literal["smollm2-v41", "canary", "v41-rank"]
Report = Callable[[str], None]

_KEY_DIGITS = 12  # of the key, in the directory's name


@dataclass(frozen=True)
class PreparedModel:
    """A model directory that an engine can load, and what is known about it."""

    path: Path
    manifest: Manifest


def prepare_model(name: ModelName, cache_dir: Path, *, report: Report) -> PreparedModel:
    """Return model `name` from `cache_dir/NAME-KEY`, made first if it is not there or is damaged.

    Needs no network. `report` gets progress lines with the elapsed time; none when the cached model is good. Two
    processes may call this at once: one makes the model, the other waits. Raises InputError when a source package or
    the cache directory is not usable, Dsv41Error when the made model misses its held-out thresholds; neither leaves
    anything behind.
    """
    description = load_description(name)
    if isinstance(description, Checkpoint):
        raise InputError(f"{name} is a checkpoint, not an embedded model", remedy="name its directory in the node file")
    key = description.key()
    start = time.monotonic()

    def report_elapsed(line: str) -> None:
        report(f"{name}: {line} [{time.monotonic() - start:.0f} s]")

    path = fetch_or_build(
        cache_dir,
        f"{name}-{key[:_KEY_DIGITS]}",
        lambda directory: _build(description, key, directory, report_elapsed),
        report_elapsed,
        size_mb=description.size_mb,
    )
    return PreparedModel(path, read_manifest(path))


def _build(description: Converted | Random | Synthetic, key: str, directory: Path, report: Report) -> None:
    report("loading torch and the V4.1 encoder")
    from dsv41_serving.embedded import canary, smollm2, synthetic  # noqa: PLC0415  # seconds, which a cache hit should not cost

    check: dict[str, float | int] = {}
    if isinstance(description, Converted):
        check = smollm2.build(description, directory, report)
    elif isinstance(description, Random):
        canary.build(description, directory)
    else:
        synthetic.build(description, directory)
    Manifest(
        name=description.name,
        summary=description.summary,
        key=key,
        source=f"{description.source.package}=={description.source.version} {description.source.file} "
        f"sha256:{description.source.sha256}",
        licence=description.source.licence,
        environment={
            "processor": _processor(),
            "torch": metadata.version("torch"),
            "transformers": metadata.version("transformers"),
        },
        check=check,
        files=list_files(directory),
    ).write(directory)
    report("done")


def _processor() -> str:
    """Return the processor's name as the kernel gives it, else the machine type."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
