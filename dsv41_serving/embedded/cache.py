"""Make a directory once, publish it whole or not at all, and let one process at a time do so."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsv41_serving.embedded.manifest import FILE_NAME
from dsv41_serving.embedded.verify import verify_model
from dsv41_serving.errors import InputError

Report = Callable[[str], None]


def fetch_or_build(
    cache_dir: Path, entry: str, build: Callable[[Path], None], report: Report, *, size_mb: int = 0
) -> Path:
    """Return `cache_dir/entry`, made by `build` unless an undamaged one is there.

    `build` fills the empty directory it is given, manifest included. A damaged entry is reported and replaced; other
    processes wait for the one that builds. Raises InputError when `cache_dir` cannot be written or has no room for the
    `size_mb` (10^6 bytes) that the entry takes.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir / f".{entry}.lock", report):
            return _fetch_or_build_locked(cache_dir, entry, build, report, size_mb)
    except PermissionError as error:
        raise InputError("cannot be written", where=str(cache_dir), remedy="choose another cache directory") from error
    except FileExistsError as error:
        raise InputError("is not a directory", where=str(cache_dir), remedy="choose another cache directory") from error


def _fetch_or_build_locked(
    cache_dir: Path, entry: str, build: Callable[[Path], None], report: Report, size_mb: int
) -> Path:
    target = cache_dir / entry
    if target.exists():
        # Without its manifest a directory may be anything; it was not published here.
        damage = verify_model(target, full=True) if (target / FILE_NAME).exists() else [f"{target} has no {FILE_NAME}"]
        if not damage:
            return target
        report(f"the cached model is damaged and will be made again ({damage[0]})")
        shutil.rmtree(target)
    prefix = f".{entry}.making-"
    # Whoever holds the lock is the only builder, so these are remains of one that was killed.
    for remains in cache_dir.glob(f"{prefix}*"):
        shutil.rmtree(remains)
    free_mb = shutil.disk_usage(cache_dir).free // 10**6
    if free_mb < size_mb:
        raise InputError(
            f"has {free_mb} MB free, the model takes {size_mb} MB",
            where=str(cache_dir),
            remedy="make room or choose another cache directory",
        )
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=cache_dir))
    try:
        build(scratch)
        publish(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return target


def publish(scratch: Path, target: Path) -> None:
    """Give `scratch` its final name, its content durable first, readable for every user (the engines' among them)."""
    for file in scratch.iterdir():
        file.chmod(0o644)
        _sync(file)
    scratch.chmod(0o755)
    _sync(scratch)
    scratch.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(lock: Path, report: Report) -> Iterator[None]:
    """Hold the exclusive lock `lock`. The file stays: to unlink it would let two processes lock two files."""
    with lock.open("w", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that makes the same model")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
