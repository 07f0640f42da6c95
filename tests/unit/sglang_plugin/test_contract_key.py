"""The key of an engine off loopback comes from its file or from systemd's copy, and an engine without it does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.credential import API_KEY
from dsv41_serving.errors import InputError
from dsv41_serving.plan.engine import KEY_FILE
from dsv41_serving.sglang_plugin.contract import key

if TYPE_CHECKING:
    from pathlib import Path


def test_the_plan_and_the_plugin_mean_one_variable() -> None:
    assert key.VARIABLE == KEY_FILE


def test_an_engine_on_loopback_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(key.VARIABLE, raising=False)
    assert key.find_key() == ""


def test_the_key_is_read_from_its_file_or_from_systemds_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("original\n", encoding="utf-8")
    monkeypatch.setenv(key.VARIABLE, str(file))
    assert key.find_key() == "original"
    (tmp_path / API_KEY).write_text("copy\n", encoding="utf-8")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert key.find_key() == "copy"


def test_a_key_that_is_not_there_stops_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(key.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(InputError, match="the API key cannot be read"):
        key.find_key()
