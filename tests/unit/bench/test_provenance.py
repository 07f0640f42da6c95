"""A measurement says where it comes from, also on a machine that has no git, as a node has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.bench.provenance import describe_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_machine_without_git_measures_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = describe_run("dsv41 transport prove")
    assert made["commit"] == "unknown"
    assert made["machine"]["load"] >= 0
    assert made["command"] == "dsv41 transport prove"
