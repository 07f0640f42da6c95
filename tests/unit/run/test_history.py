"""What earlier starts took is what the next one may be expected to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.run.history import KEPT_STARTS, StartHistory

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_expected_of_the_first_start(tmp_path: Path) -> None:
    """And asking writes nothing."""
    assert StartHistory(tmp_path, "prefill").expected_s("gate") is None
    assert list(tmp_path.iterdir()) == []


def test_the_median_is_expected(tmp_path: Path) -> None:
    """One slow start does not change what is usual; a phase counts only where it occurred."""
    history = StartHistory(tmp_path, "prefill")
    for seconds in (4.0, 100.0, 5.0):
        history.add({"gate": seconds})
    history.add({"importing": 9.0})
    assert history.expected_s("gate") == 5.0
    assert history.expected_s("importing") == 9.0
    assert StartHistory(tmp_path, "prefill").expected_s("gate") == 5.0
    assert StartHistory(tmp_path, "decode").expected_s("gate") is None


def test_only_the_last_starts_count(tmp_path: Path) -> None:
    """A machine that became faster is believed after a while."""
    history = StartHistory(tmp_path, "prefill")
    for _ in range(5):
        history.add({"gate": 60.0})
    for _ in range(KEPT_STARTS):
        history.add({"gate": 6.0})
    assert history.expected_s("gate") == 6.0


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"5", b'{"gate": 3}', b'[5, "x"]', b'[{"gate": "x"}, {"gate": null}]']
)
def test_a_damaged_history_is_none(tmp_path: Path, content: bytes) -> None:
    """It is a convenience: no start fails for it, and the next one repairs it."""
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "prefill.json").write_bytes(content)
    history = StartHistory(tmp_path, "prefill")
    assert history.expected_s("gate") is None
    history.add({"gate": 3.0})
    assert history.expected_s("gate") == 3.0
