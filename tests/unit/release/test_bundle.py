"""A bundle: the same file for the same content, and what the installer refuses."""

from __future__ import annotations

import io
import json
import platform
import sys
import tarfile
from pathlib import Path

import pytest

from dsv41_serving.embedded.manifest import hash_file
from dsv41_serving.errors import InputError
from dsv41_serving.release.bundle import Bundle, make_bundle
from dsv41_serving.release.install import InstallError, install, unpack

ROOT = Path(__file__).parents[3]


def make(directory: Path, binaries: list[Path] | None = None) -> Bundle:
    return make_bundle(ROOT, directory, extras=(), wheels=False, binaries=binaries or [], report=lambda _: None)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make(tmp_path_factory.mktemp("bundle"))


def test_equal_content_is_an_equal_bundle(bundle: Bundle, tmp_path: Path) -> None:
    again = make(tmp_path)
    assert Path(again.path).name == Path(bundle.path).name == f"dsv41-{bundle.version}-{bundle.id}.tar"
    assert hash_file(Path(again.path)) == hash_file(Path(bundle.path))


def test_a_binary_travels_by_its_hash(bundle: Bundle, tmp_path: Path) -> None:
    archive = tmp_path / "prometheus-3.5.3.linux-amd64.tar.gz"
    archive.write_bytes(b"archive")
    with_binary = make(tmp_path / "out", [archive])
    assert with_binary.id != bundle.id
    (tmp_path / "content").mkdir()
    manifest = unpack(Path(with_binary.path), tmp_path / "content")
    assert manifest["files"][f"binaries/{archive.name}"] == hash_file(archive)


def test_every_file_is_in_the_manifest_and_nothing_else_is_there(bundle: Bundle, tmp_path: Path) -> None:
    manifest = unpack(Path(bundle.path), tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {*manifest["files"], "release.json"}
    assert manifest["machine"] == platform.machine()
    assert set(manifest["models"]) == {path.name for path in (ROOT / "deploy/models").glob("*.toml")}
    assert {"install.py", "requirements.txt", "uv"} <= found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requirements.txt": b"evil==1\n"}, "'requirements.txt' is missing or differs from the manifest"),
        ({"requirements.txt": None}, "'requirements.txt' is missing or differs from the manifest"),
        ({"../outside": b""}, "holds '../outside', which is not a plain file"),
        ({"release.json": None}, "is not a bundle of this project"),
        ({"python": "2.7"}, f"is for Python 2.7, this is {sys.version_info.major}.{sys.version_info.minor}"),
        ({"machine": "aarch65"}, "is for machine aarch65, this is"),
    ],
)
def test_a_bundle_that_is_not_whole_is_refused(
    bundle: Bundle, tmp_path: Path, change: dict[str, bytes | str | None], says: str
) -> None:
    broken = tmp_path / "broken.tar"
    with tarfile.open(bundle.path) as source, tarfile.open(broken, "w") as target:
        contents = {member.name: source.extractfile(member).read() for member in source if member.name != "uv"}
        manifest = json.loads(contents["release.json"])
        del manifest["files"]["uv"]
        manifest.update({key: value for key, value in change.items() if key in manifest})
        contents["release.json"] = json.dumps(manifest).encode()
        contents.update({key: value for key, value in change.items() if key not in manifest})
        for name, content in contents.items():
            if content is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                target.addfile(entry, io.BytesIO(content))
    (tmp_path / "content").mkdir()
    with pytest.raises(InstallError, match=says):
        unpack(broken, tmp_path / "content")
    assert not (tmp_path / "outside").exists()


def test_only_a_checkout_makes_bundles(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a checkout of this project"):
        make_bundle(tmp_path, tmp_path, extras=(), wheels=False, binaries=[], report=lambda _: None)
    with pytest.raises(InputError, match=r"absent\.tar: no such file"):
        make(tmp_path, [tmp_path / "absent.tar"])


def test_an_installation_that_fails_takes_no_room(bundle: Bundle, tmp_path: Path) -> None:
    """Half an environment on a full disk would be what the running engines lack."""
    node_file = tmp_path / "node.toml"
    node_file.touch()
    with pytest.raises(InstallError, match="uv pip failed: "):  # the cache is empty, and a network is not allowed
        install(Path(bundle.path), tmp_path / "root", "first", node_file, index=None, no_network=True)
    assert list((tmp_path / "root/environments").iterdir()) == []
    assert not (tmp_path / "root/releases").exists()
