"""Install a bundle as one release of a node. Travels inside the bundle: the standard library is all it may use.

    python3.11 install.py dsv41-0.1.0-1a2b.tar --root /opt/dsv41 --name 0.1.0-3c4d --node-file node.toml

Below the root lie `environments/HASH` (third-party packages, shared by releases with equal requirements), `releases/NAME`
(this project, its node file and its manifest) and `cache` (packages). A directory without its `.complete` is remains of an
installation that did not end; it is removed. Nothing becomes current here: that is `dsv41 release activate`.
"""

# ruff: noqa: T201 - this is a command
from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

COMPLETE = ".complete"


class InstallError(Exception):
    """One line for the operator."""


def main() -> int:
    """Install the bundle named on the command line. Return 0, or 2 with one line on standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--root", type=Path, default=Path("/opt/dsv41"), help="default: %(default)s")
    parser.add_argument("--name", required=True, help="name of the release")
    parser.add_argument("--node-file", type=Path, required=True, help="description of the node that the release serves")
    parser.add_argument("--index", help="package index; default: the installer's own")
    parser.add_argument("--no-network", action="store_true", help="take packages from the cache alone")
    arguments = parser.parse_args()
    try:
        install(
            arguments.bundle, arguments.root, arguments.name, arguments.node_file,
            index=arguments.index, no_network=arguments.no_network,
        )  # fmt: skip
    except (InstallError, OSError, tarfile.TarError) as error:
        print(f"{arguments.bundle}: {error}", file=sys.stderr)
        return 2
    return 0


def install(bundle: Path, root: Path, name: str, node_file: Path, *, index: str | None, no_network: bool) -> None:
    """Make `root/releases/NAME` from `bundle`. Raises InstallError, OSError or TarError and leaves no complete release then."""
    release = root / "releases" / name
    if (release / COMPLETE).exists():
        print(f"{release} is installed")
        return
    os.umask(0o022)  # whatever the caller's is: the service user reads all of it
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".bundle-") as scratch:
        content = Path(scratch)
        manifest = unpack(bundle, content)
        if manifest["offline"]:
            # Its cache goes with the unpacked bundle: nobody fetches these again.
            source = ["--no-index", "--find-links", str(content / "wheels"), "--cache-dir", str(content / "cache")]
        else:
            source = ["--cache-dir", str(root / "cache"), *(["--default-index", index] if index else [])]
            source += ["--offline"] if no_network else []
        environment = make_environment(content, root, source)
        make_release(content, release, environment, node_file)
    print(f"installed {release}")


def unpack(bundle: Path, content: Path) -> dict[str, object]:
    """Unpack `bundle` into `content` and compare every file with the manifest. Raises InstallError."""
    with tarfile.open(bundle) as archive:
        for member in archive:
            target = (content / member.name).resolve()
            if not member.isfile() or not target.is_relative_to(content.resolve()):
                raise InstallError(f"holds '{member.name}', which is not a plain file; make the bundle again")
            target.parent.mkdir(parents=True, exist_ok=True)
            stream = archive.extractfile(member)
            if stream is None:
                raise InstallError(f"'{member.name}' cannot be read; copy the bundle again")
            with stream, target.open("wb") as output:
                shutil.copyfileobj(stream, output, 1 << 20)
            target.chmod(member.mode)
    try:
        manifest: dict[str, object] = json.loads((content / "release.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InstallError("is not a bundle of this project; make one with `dsv41 bundle`") from None
    files = manifest["files"]
    if not isinstance(files, dict):
        raise InstallError("its manifest is damaged; copy the bundle again")
    for path, sha256 in files.items():
        if not (content / path).is_file() or digest(content / path) != sha256:
            raise InstallError(f"'{path}' is missing or differs from the manifest; copy the bundle again")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for what, wanted, found in (
        ("Python", manifest["python"], here),
        ("machine", manifest["machine"], platform.machine()),
    ):
        if wanted not in {None, found}:
            raise InstallError(f"is for {what} {wanted}, this is {found}; make the bundle on a machine like this one")
    return manifest


def make_environment(content: Path, root: Path, source: list[str]) -> Path:
    """Return the environment of the locked packages, made first unless one with the same requirements is there."""
    text = (content / "requirements.txt").read_bytes() + sys.version.encode()
    environment = root / "environments" / hashlib.sha256(text).hexdigest()[:12]
    if (environment / COMPLETE).exists():
        return environment
    new_venv(content, environment)
    try:
        uv(
            content, "pip", "sync", "--python", str(environment / "bin" / "python"), "--require-hashes", "--compile-bytecode",
            *source, str(content / "requirements.txt"),
        )  # fmt: skip
    except InstallError:
        shutil.rmtree(environment)  # half of it on a full disk would leave no room for what serves
        raise
    (environment / COMPLETE).touch()
    return environment


def make_release(content: Path, release: Path, environment: Path, node_file: Path) -> None:
    """Install this project over `environment`, and put the node file, the manifest and the archives of the bundle beside it."""
    new_venv(content, release / "venv")
    (wheel,) = (content / "wheels").glob("dsv41_serving-*.whl")
    python = release / "venv" / "bin" / "python"
    uv(
        content,
        "pip",
        "install",
        "--python",
        str(python),
        "--no-deps",
        "--no-index",
        "--no-cache",
        "--compile-bytecode",
        str(wheel),
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (own,) = (release / "venv").glob("lib/python*/site-packages")
    # addsitedir, unlike a plain path, also reads the .pth files of the environment.
    (own / "environment.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n", encoding="utf-8")
    for name, source in (("node.toml", node_file), ("release.json", content / "release.json")):
        shutil.copyfile(source, release / name)
    if (content / "binaries").exists():
        shutil.copytree(content / "binaries", release / "binaries", dirs_exist_ok=True)
    (release / COMPLETE).write_text(f"{environment.name}\n", encoding="utf-8")


def new_venv(content: Path, path: Path) -> None:
    """Make an empty virtual environment of the running interpreter at `path`, removing what an earlier try left."""
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    uv(content, "venv", "--no-project", "--python", sys.executable, str(path))


def uv(content: Path, *arguments: str) -> None:
    """Run the bundle's uv. Raises InstallError with its last words."""
    done = subprocess.run(
        [str(content / "uv"), "--quiet", "--no-config", "--no-python-downloads", *arguments],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())
        raise InstallError(f"uv {arguments[0]} failed: {words or f'status {done.returncode}'}")


def digest(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
