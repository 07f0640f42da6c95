"""A directory as a service finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.facts.directory import Directory, SecretFile, measure_read, read_directory, read_secret

if TYPE_CHECKING:
    from pathlib import Path


def mount(root: Path, *lines: str) -> None:
    """Write the mount table of a machine."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in lines))


def test_a_directory_of_this_machine(tmp_path: Path) -> None:
    found = read_directory(str(tmp_path))
    assert (found.exists, found.writable) == (True, True)
    assert found.free_bytes > 0
    assert found.filesystem


def test_one_that_does_not_exist_is_judged_by_what_is_above(tmp_path: Path) -> None:
    """It can be made when its parent is writable."""
    found = read_directory(str(tmp_path / "a/b/c"))
    assert (found.exists, found.writable) == (False, True)


def test_the_longest_mount_point_decides(tmp_path: Path) -> None:
    """And of two on one point, the later; optional fields come before the dash."""
    (tmp_path / "srv/models").mkdir(parents=True)
    mount(
        tmp_path,
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
        f"23 22 0:44 / {tmp_path}/srv rw,noexec,nosuid - tmpfs tmpfs rw",
        f"24 23 0:45 / {tmp_path}/srv/models ro shared:2 master:1 - nfs4 server:/models ro",
    )
    models = read_directory("/srv/models", tmp_path)
    assert (models.filesystem, models.noexec, models.remote) == ("nfs4", False, True)
    srv = read_directory("/srv", tmp_path)
    assert (srv.filesystem, srv.noexec, srv.remote) == ("tmpfs", True, False)
    root = read_directory("/", tmp_path)
    assert (root.filesystem, root.noexec) == ("ext4", False)


def test_a_malformed_mount_table_is_bad_input(tmp_path: Path) -> None:
    mount(tmp_path, "nonsense")
    with pytest.raises(InputError, match="expected a mount"):
        read_directory("/", tmp_path)


def test_reading_is_measured_from_the_middle(tmp_path: Path) -> None:
    """At most the limit, and nothing of a file that is not there or empty."""
    file = tmp_path / "weights"
    file.write_bytes(bytes(12 << 20))
    speed = measure_read(file, limit_bytes=4 << 20)
    assert speed is not None
    assert speed > 0
    (tmp_path / "empty").touch()
    assert measure_read(tmp_path / "empty") is None
    assert measure_read(tmp_path / "absent") is None


@pytest.mark.parametrize(("filesystem", "remote"), [("nfs", True), ("fuse.sshfs", True), ("xfs", False), (None, False)])
def test_file_systems_that_come_over_a_network(filesystem: str | None, *, remote: bool) -> None:
    place = Directory(
        path="/m", exists=True, writable=True, free_bytes=1, free_files=1, filesystem=filesystem, noexec=False
    )
    assert place.remote is remote


def test_a_secret_is_known_by_its_mode_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o640)
    assert read_secret("/key", tmp_path) == SecretFile(path="/key", exists=True, open_to_others=False)
    key.chmod(0o644)
    assert read_secret("/key", tmp_path).open_to_others
    assert not read_secret("/absent", tmp_path).exists
