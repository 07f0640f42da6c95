"""A directory as a service will find it: there, writable, with room, on which file system."""

from __future__ import annotations

import mmap
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dsv41_serving.facts import files

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "lustre", "9p", "afs"}
_CHUNK_BYTES = 4 << 20


class Directory(BaseModel):
    """One directory. A directory that does not exist yet has the values of the nearest one above it that does."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str
    exists: bool
    writable: bool
    """Whether this user may write there, or create it."""
    free_bytes: int
    """What this user may still write."""
    free_files: int | None
    """Files that can still be created; None where the file system does not count them."""
    filesystem: str | None
    """Type as mount(8) names it, such as ext4."""
    noexec: bool
    """Whether the file system refuses to run programs."""

    @property
    def remote(self) -> bool:
        """Whether the files come over a network."""
        return self.filesystem in _NETWORK


class SecretFile(BaseModel):
    """A file with a key. Its content is not a fact."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    path: str
    exists: bool
    open_to_others: bool
    """Whether users other than its owner and group may read it."""


def read_secret(path: str, root: Path = Path("/")) -> SecretFile:
    """Return what is known of the secret at `path` on the machine below `root`."""
    try:
        mode = (root / path.lstrip("/")).stat().st_mode
    except OSError:
        return SecretFile(path=path, exists=False, open_to_others=False)
    return SecretFile(path=path, exists=stat.S_ISREG(mode), open_to_others=bool(mode & stat.S_IROTH))


def read_directory(path: str, root: Path = Path("/")) -> Directory:
    """Return what is known of `path` on the machine below `root`."""
    wanted = root / path.lstrip("/") if Path(path).is_absolute() else Path(path).absolute()
    nearest = next((each for each in (wanted, *wanted.parents) if each.exists()), Path("/"))
    size = os.statvfs(nearest)
    filesystem, options = _find_mount(nearest.resolve(), root)
    return Directory(
        path=path,
        exists=wanted.is_dir(),
        writable=os.access(nearest, os.W_OK | os.X_OK),
        free_bytes=size.f_bavail * size.f_frsize,
        free_files=size.f_favail if size.f_files else None,
        filesystem=filesystem,
        noexec="noexec" in options,
    )


def _find_mount(path: Path, root: Path) -> tuple[str | None, set[str]]:
    """Return type and options of the file system that holds `path`: the last, longest mount point above it.

    A line of mountinfo has optional fields between the options and a lone dash (proc_pid_mountinfo(5)).
    """
    best: tuple[int, str | None, set[str]] = (-1, None, set())
    for line in (files.read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 6 or not kinds:  # noqa: PLR2004 the fixed fields of the format
            raise files.malformed(root / "proc/self/mountinfo", f"expected a mount, found {line[:60]!r}")
        point = Path(fields[4].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), kinds[0], {*fields[5].split(",")})
    return best[1], best[2]


def measure_read(path: Path, *, limit_bytes: int = 128 << 20) -> float | None:
    """Return bytes per second of reading the middle of file `path`, past the page cache; None when it cannot be read.

    Reads at most `limit_bytes`. Where the file system has no direct I/O, the pages are dropped from the cache first.
    """
    try:
        size = path.stat().st_size
        descriptor = _open_uncached(path)
    except OSError:
        return None
    start = size // 2 // _CHUNK_BYTES * _CHUNK_BYTES
    end = min(size, start + limit_bytes)
    try:
        with mmap.mmap(-1, _CHUNK_BYTES) as buffer:  # page aligned, as direct I/O wants
            began = time.perf_counter()
            position = start
            while position < end and (got := os.preadv(descriptor, [buffer], position)):
                position += got
            elapsed = time.perf_counter() - began
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return (position - start) / elapsed if position > start else None


def _open_uncached(path: Path) -> int:
    with suppress(OSError):  # EINVAL on tmpfs and some network file systems
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor
