"""Releases side by side: the step between them, the way back, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.release.directory import Releases


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    for name, environment in (("a", "e1"), ("b", "e1"), ("c", "e2"), ("d", "e2"), ("half", None)):
        (tmp_path / "releases" / name).mkdir(parents=True)
        if environment:
            (tmp_path / "releases" / name / ".complete").write_text(f"{environment}\n")
            (tmp_path / "environments" / environment).mkdir(parents=True, exist_ok=True)
    return Releases(tmp_path)


def test_a_bare_directory_has_no_release(tmp_path: Path) -> None:
    bare = Releases(tmp_path)
    assert (bare.current, bare.installed(), bare.history()) == (None, [], [])
    with pytest.raises(InputError, match="there is no earlier release"):
        bare.previous()


def test_activation_is_a_link_and_a_line(releases: Releases) -> None:
    releases.activate("a")
    releases.activate("a")
    releases.activate("b")
    assert releases.current == "b"
    assert (releases.root / "current").resolve() == releases.root / "releases" / "b"
    assert [name for _, name in releases.history()] == ["a", "b"]
    assert releases.installed()[:2] == ["b", "a"]


def test_half_a_release_is_none(releases: Releases) -> None:
    assert "half" not in releases.installed()
    with pytest.raises(InputError, match=r"release 'half' is not installed; installed are: a, b, c, d"):
        releases.activate("half")
    assert releases.current is None


def test_the_way_back_leads_to_what_served_and_back_again(releases: Releases) -> None:
    for name in ("a", "b"):
        releases.activate(name)
    assert releases.previous() == "a"
    releases.activate("a")
    assert releases.previous() == "b"


def test_the_way_back_passes_by_what_did_not_serve(releases: Releases) -> None:
    for name in ("a", "b", "c"):
        releases.activate(name)
    releases.mark_failed("c", "gate: router: no answer")
    releases.activate("b")
    assert releases.previous() == "a"
    assert releases.failure("c") == "gate: router: no answer"
    releases.activate("c")
    assert releases.failure("c") == ""


def test_the_last_three_are_kept_with_what_they_run_on(releases: Releases) -> None:
    for name in ("a", "b", "c", "d"):
        releases.activate(name)
    assert releases.prune() == ["a", "half"]
    assert releases.installed() == ["d", "c", "b"]
    assert {path.name for path in (releases.root / "environments").iterdir()} == {"e1", "e2"}
    assert releases.prune(keep=2) == ["b", "e1"]


def test_the_current_release_is_kept_even_when_it_is_old(releases: Releases) -> None:
    for name in ("a", "b", "c"):
        releases.activate(name)
    (releases.root / "current").unlink()
    (releases.root / "current").symlink_to("releases/a")
    releases.prune(keep=1)
    assert set(releases.installed()) == {"a", "c"}
