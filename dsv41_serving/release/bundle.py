"""`dsv41 bundle`: one file with everything a release is installed from.

A bundle holds the project's wheel, the locked requirements of a node, the installer `uv` and `install.py`; with wheels it
also holds every locked package, and a node without a network installs from it. Its name carries the hash of its manifest,
so equal bundles have equal names.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.embedded.manifest import hash_file
from dsv41_serving.errors import Dsv41Error, InputError
from dsv41_serving.release.lock import PROJECT, read_lock, select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MANIFEST = "release.json"
INSTALLER = Path(__file__).with_name("install.py")
DEFAULT_EXTRAS = ("engine", "embedded")


@dataclass(frozen=True)
class Bundle:
    """A bundle file and what identifies it."""

    path: str
    id: str
    """First 12 hex digits of the sha256 of its manifest."""
    version: str
    """Version of this project in it."""
    offline: bool
    """Whether it holds the wheels of every locked package."""
    installer: str
    """The script that installs it, as a path on this machine."""

    def as_json(self) -> str:
        """Return the fields as JSON."""
        return json.dumps(asdict(self), indent=2)


def make_bundle(
    source: Path,
    directory: Path,
    *,
    extras: Sequence[str],
    wheels: bool,
    binaries: Sequence[Path],
    report: Callable[[str], None],
) -> Bundle:
    """Write the bundle of the checkout `source` into `directory`; leave one that is there already alone.

    `binaries` are archives that travel along (Prometheus, Grafana). Raises InputError when `source` is no checkout or a
    binary is missing, Dsv41Error when a build or a download fails.
    """
    lock = source / "requirements.lock"
    if not lock.is_file() or not (source / "pyproject.toml").is_file():
        raise InputError("is not a checkout of this project", where=str(source), remedy="run it there, or use --source")
    with tempfile.TemporaryDirectory(prefix="dsv41-bundle-") as scratch:
        content = Path(scratch)
        (content / "wheels").mkdir()
        report("building the wheel")
        _run([_uv(), "build", "--quiet", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable,
              "--out-dir", str(content / "wheels"), str(source)])  # fmt: skip
        (content / "wheels" / ".gitignore").unlink(missing_ok=True)
        requirements = select(read_lock(lock.read_text(encoding="utf-8")), extras)
        (content / "requirements.txt").write_text(requirements, encoding="utf-8")
        if wheels:
            report(f"collecting {requirements.count('==')} packages")
            _collect(content)
        shutil.copyfile(_uv(), content / "uv")
        shutil.copyfile(INSTALLER, content / INSTALLER.name)
        (content / "binaries").mkdir()
        for binary in binaries:
            if not binary.is_file():
                raise InputError("no such file", where=str(binary), remedy="fetch it first, or leave --binary out")
            shutil.copyfile(binary, content / "binaries" / binary.name)
        return _pack(content, directory, offline=wheels, models=source / "deploy" / "models")


def _pack(content: Path, directory: Path, *, offline: bool, models: Path) -> Bundle:
    files = sorted(path for path in content.rglob("*") if path.is_file())
    manifest = json.dumps(
        {
            "project": PROJECT,
            "version": version(PROJECT),
            "machine": platform.machine(),
            # Wheels are those of one Python; requirements with hashes serve both.
            "python": f"{sys.version_info.major}.{sys.version_info.minor}" if offline else None,
            "offline": offline,
            "files": {str(path.relative_to(content)): hash_file(path) for path in files},
            "models": {path.name: hash_file(path) for path in sorted(models.glob("*.toml"))},
        },
        indent=2,
        sort_keys=True,
    )
    identity = hashlib.sha256(manifest.encode()).hexdigest()[:12]
    bundle = Bundle(
        path=str(directory.resolve() / f"dsv41-{version(PROJECT)}-{identity}.tar"),
        id=identity,
        version=version(PROJECT),
        offline=offline,
        installer=str(INSTALLER),
    )
    target = Path(bundle.path)
    if target.exists():
        return bundle
    directory.mkdir(parents=True, exist_ok=True)
    making = target.with_suffix(".making")
    with tarfile.open(making, "w") as archive:
        _add(archive, MANIFEST, manifest.encode())
        for path in files:
            entry = tarfile.TarInfo(str(path.relative_to(content)))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.name == "uv" else 0o644
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
    making.rename(target)
    return bundle


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _collect(content: Path) -> None:
    """Fetch every locked package as a wheel, by the lock's hashes, and pin the requirements to exactly these files.

    A package that exists as source alone is built here, so that the node needs no compiler. The lock has chosen: constraints that
    this machine sets for pip do not apply.
    """
    requirements = content / "requirements.txt"
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
          "--wheel-dir", str(content / "wheels"), "--requirement", str(requirements)], PIP_CONSTRAINT=os.devnull)  # fmt: skip
    lines = []
    for wheel in sorted((content / "wheels").glob("*.whl")):
        name, release = wheel.name.split("-")[:2]
        if re.sub(r"[-_.]+", "-", name).lower() != PROJECT:
            lines.append(f"{name}=={release} --hash=sha256:{hash_file(wheel)}\n")
    requirements.write_text("".join(lines), encoding="utf-8")


def _uv() -> str:
    from uv import find_uv_bin  # noqa: PLC0415 - a development dependency, needed here alone

    return find_uv_bin()


def _run(command: Sequence[str], **environment: str) -> None:
    """Run `command` with `environment` set. Raises Dsv41Error with its first error, or else its last words."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()
        reason = next((line for line in lines if line.lower().startswith("error:")), lines[-1])
        raise Dsv41Error(reason, where=" ".join(command[:3]))
