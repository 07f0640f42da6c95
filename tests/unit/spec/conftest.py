from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def write_node(tmp_path: Path) -> Callable[[str], Path]:
    """Write a node file and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
