"""A prepared model is published whole, once, by one process, and replaced when damaged."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from dsv41_serving.embedded.cache import fetch_or_build
from dsv41_serving.errors import InputError

from .conftest import fill_model_directory


class Builder:
    """Fills a directory and counts how often."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, directory: Path) -> None:
        """Build."""
        self.runs += 1
        fill_model_directory(directory)


def contents(directory: Path) -> set[str]:
    """Return the names in a directory, hidden ones included."""
    return {path.name for path in directory.iterdir()}


def test_built_once_then_found(tmp_path: Path) -> None:
    """The second call returns the same directory without building or reporting."""
    builder, reported = Builder(), []
    first = fetch_or_build(tmp_path / "cache", "toy-1", builder, reported.append)
    second = fetch_or_build(tmp_path / "cache", "toy-1", builder, reported.append)
    assert first == second == tmp_path / "cache" / "toy-1"
    assert builder.runs == 1
    assert reported == []
    assert contents(tmp_path / "cache") == {"toy-1", ".toy-1.lock"}


def test_published_files_are_readable_for_other_users(tmp_path: Path) -> None:
    """Engines may run as another user than the one who prepared the model."""
    path = fetch_or_build(tmp_path, "toy-1", Builder(), lambda _: None)
    assert path.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o644}


def test_a_damaged_entry_is_replaced(tmp_path: Path) -> None:
    """A changed byte in the cache is found, reported with its file, and mended by building again."""
    builder, reported = Builder(), []
    path = fetch_or_build(tmp_path, "toy-1", builder, reported.append)
    weights = path / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-1] + b"\x01")
    fetch_or_build(tmp_path, "toy-1", builder, reported.append)
    assert builder.runs == 2
    assert weights.read_bytes() == original
    assert len(reported) == 1
    assert reported[0].startswith(f"the cached model is damaged and will be made again ({weights}: differs")


def test_an_entry_without_a_manifest_is_replaced(tmp_path: Path) -> None:
    """What this project did not publish whole is not trusted."""
    builder = Builder()
    path = fetch_or_build(tmp_path, "toy-1", builder, lambda _: None)
    (path / "manifest.json").unlink()
    fetch_or_build(tmp_path, "toy-1", builder, lambda _: None)
    assert builder.runs == 2
    assert (path / "manifest.json").is_file()


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """The error comes through, no entry appears, no scratch directory remains."""

    def fail(directory: Path) -> None:
        (directory / "half").write_text("half")
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        fetch_or_build(tmp_path, "toy-1", fail, lambda _: None)
    assert contents(tmp_path) == {".toy-1.lock"}


def test_nothing_is_visible_before_it_is_complete(tmp_path: Path) -> None:
    """While a build runs, the entry does not exist under its name."""
    seen: list[bool] = []

    def build(directory: Path) -> None:
        seen.append((tmp_path / "toy-1").exists())
        fill_model_directory(directory)
        seen.append((tmp_path / "toy-1").exists())

    fetch_or_build(tmp_path, "toy-1", build, lambda _: None)
    assert seen == [False, False]


def test_remains_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    """A scratch directory left by a kill goes with the next build of the same entry; others stay."""
    for name in (".toy-1.making-dead", ".toy-2.making-alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    fetch_or_build(tmp_path, "toy-1", Builder(), lambda _: None)
    assert contents(tmp_path) == {"toy-1", ".toy-1.lock", ".toy-2.making-alive"}


def _compete(cache: str, log: str, gate: Any, queue: Any) -> None:
    def build(directory: Path) -> None:
        with Path(log).open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        gate.wait(20)  # until the other process has reported that it waits
        fill_model_directory(directory)

    def report(line: str) -> None:
        queue.put(line)
        gate.set()

    queue.put(str(fetch_or_build(Path(cache), "toy-1", build, report)))


def test_two_processes_build_once(tmp_path: Path) -> None:
    """One builds while the other waits and says so; both get the same, complete directory."""
    context = multiprocessing.get_context("fork")
    gate, queue = context.Event(), context.Queue()
    log = tmp_path / "log"
    workers = [
        context.Process(target=_compete, args=(str(tmp_path / "cache"), str(log), gate, queue)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    lines = sorted(queue.get(timeout=30) for _ in range(3))
    for worker in workers:
        worker.join(30)
    path = str(tmp_path / "cache" / "toy-1")
    assert lines == sorted([path, path, "waiting for another process that makes the same model"])
    assert len(log.read_text().splitlines()) == 1


def test_a_file_in_place_of_the_cache(tmp_path: Path) -> None:
    """One line names the path and the way out."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(InputError, match=r"cache: is not a directory; choose another cache directory"):
        fetch_or_build(tmp_path / "cache", "toy-1", Builder(), lambda _: None)


def test_a_full_disk_is_found_before_the_work(tmp_path: Path) -> None:
    """Too little room is told in one line, and nothing is built."""
    builder = Builder()
    with pytest.raises(InputError, match=r"has \d+ MB free, the model takes 1000000000000 MB; make room or choose"):
        fetch_or_build(tmp_path, "toy-1", builder, lambda _: None, size_mb=10**12)
    assert builder.runs == 0


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal becomes one line with the remedy."""

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match="cannot be written; choose another cache directory"):
        fetch_or_build(tmp_path / "cache", "toy-1", Builder(), lambda _: None)
