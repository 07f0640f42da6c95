"""What `verify_model` finds wrong with a model directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dsv41_serving.embedded import load_description, special_tokens, verify_model
from dsv41_serving.embedded.description import Checkpoint
from dsv41_serving.embedded.manifest import FILE_NAME


def lines(path: Path, *, full: bool = False, checkpoint: Checkpoint | None = None) -> list[str]:
    """The problems as a person reads them."""
    return [str(problem) for problem in verify_model(path, full=full, checkpoint=checkpoint)]


@pytest.mark.parametrize("full", [False, True])
def test_a_complete_model_has_no_problem(model_directory: Path, full: bool) -> None:  # noqa: FBT001
    """Fast and full verification both find nothing."""
    assert lines(model_directory, full=full) == []


def test_an_absent_directory(tmp_path: Path) -> None:
    """The line names the directory and says what to do."""
    assert lines(tmp_path / "no") == [
        f"{tmp_path / 'no'}: the model directory does not exist; prepare or fetch the model again"
    ]


def test_a_file_instead_of_a_directory(model_directory: Path) -> None:
    """Naming config.json itself is a common slip."""
    assert lines(model_directory / "config.json") == [
        f"{model_directory / 'config.json'}: is a file, not a model directory; name the directory that holds config.json"
    ]


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root reads everything; run as another user: sudo -u nobody make test-unit"
)
def test_an_unreadable_directory(model_directory: Path) -> None:
    """A service user without permission gets the remedy for that."""
    model_directory.chmod(0)
    try:
        assert lines(model_directory) == [
            f"{model_directory}: the model directory cannot be read; let the service's user read and enter it"
        ]
    finally:
        model_directory.chmod(0o755)


def test_an_unreadable_directory_as_any_user(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for root, with the kernel's refusal simulated."""

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert lines(model_directory) == [
        f"{model_directory}: the model directory cannot be read; let the service's user read and enter it"
    ]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file(name: str, model_directory: Path) -> None:
    """Every file of the manifest is missed by name."""
    (model_directory / name).unlink()
    assert f"{model_directory / name}: is missing; prepare or fetch the model again" in lines(model_directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_truncated_file(name: str, model_directory: Path) -> None:
    """A truncated file is found without hashing, and reported once."""
    size = (model_directory / name).stat().st_size
    os.truncate(model_directory / name, size - 5)
    assert lines(model_directory) == [
        f"{model_directory / name}: has {size - 5} bytes instead of {size}; prepare or fetch the model again"
    ]


def test_a_changed_byte_is_found_by_full_verification(model_directory: Path) -> None:
    """Equal size hides tampering from the fast check, not from the full one."""
    file = model_directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert lines(model_directory) == []
    assert lines(model_directory, full=True) == [
        f"{file}: differs from the manifest's sha256; prepare or fetch the model again"
    ]


def test_a_damaged_manifest(model_directory: Path) -> None:
    """A manifest that is not one is itself the problem."""
    (model_directory / FILE_NAME).write_text("{")
    assert lines(model_directory) == [
        f"{model_directory / FILE_NAME}: the manifest cannot be read or is damaged; prepare or fetch the model again"
    ]


@pytest.mark.parametrize("token", special_tokens.REQUIRED)
def test_a_missing_special_token(token: str, model_directory: Path) -> None:
    """Each token that the V4.1 encoder needs is missed by name, before SGLang would fail on it."""
    (model_directory / FILE_NAME).unlink()
    file = model_directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"] = [each for each in tokenizer["added_tokens"] if each["content"] != token]
    file.write_text(json.dumps(tokenizer))
    assert lines(model_directory) == [f"{file}: the added vocabulary lacks {token}; use a tokenizer of DeepSeek-V4.1"]


def test_weights_are_checked_without_a_manifest(model_directory: Path) -> None:
    """A safetensors file says how long it must be, so truncation shows without any manifest."""
    (model_directory / FILE_NAME).unlink()
    file = model_directory / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 4)
    assert lines(model_directory) == [
        f"{file}: is truncated or damaged: {size - 4} bytes instead of {size}; prepare or fetch the model again"
    ]
    file.write_bytes(b"version https://git-lfs")
    assert lines(model_directory) == [
        f"{file}: is not a safetensors file or is truncated; prepare or fetch the model again"
    ]
    file.unlink()
    assert lines(model_directory) == [
        f"{model_directory}: there are no weights (*.safetensors); prepare or fetch the model again"
    ]


@pytest.fixture
def checkpoint() -> Checkpoint:
    """The production description, reduced to two weight files."""
    found = load_description("deepseek-v4.1-flash")
    assert isinstance(found, Checkpoint)
    return found.model_copy(update={"weight_files": 2})


@pytest.fixture
def checkpoint_directory(model_directory: Path, checkpoint: Checkpoint) -> Path:
    """What a fetched checkpoint looks like: two shards and their index, configuration nested, no manifest."""
    (model_directory / FILE_NAME).unlink()
    (model_directory / "model.safetensors").unlink()
    shards = {f"model-0000{n}-of-00002.safetensors": {f"w{n}": torch.zeros(4)} for n in (1, 2)}
    for name, tensors in shards.items():
        save_file(tensors, model_directory / name)
    index = {"weight_map": {tensor: name for name, tensors in shards.items() for tensor in tensors}}
    (model_directory / "model.safetensors.index.json").write_text(json.dumps(index))
    top = {key: checkpoint.config[key] for key in ("model_type", "architectures")}
    nested = {key: value for key, value in checkpoint.config.items() if key not in top}
    (model_directory / "config.json").write_text(json.dumps({**top, "text_config": nested}))
    return model_directory


def test_a_complete_checkpoint(checkpoint_directory: Path, checkpoint: Checkpoint) -> None:
    """Fields may stand in text_config; unknown digests are not compared."""
    assert lines(checkpoint_directory, checkpoint=checkpoint, full=True) == []


def test_a_missing_shard(checkpoint_directory: Path, checkpoint: Checkpoint) -> None:
    """The index names the shard that is not there, and the count is off."""
    shard = checkpoint_directory / "model-00002-of-00002.safetensors"
    shard.unlink()
    assert lines(checkpoint_directory, checkpoint=checkpoint) == [
        f"{shard}: is missing; fetch it again at revision dba1be0a",
        f"{checkpoint_directory}: has 1 weight files instead of 2; fetch it again at revision dba1be0a",
    ]


def test_another_model(checkpoint_directory: Path, checkpoint: Checkpoint) -> None:
    """A directory of another model is told by its configuration."""
    (checkpoint_directory / "config.json").write_text(json.dumps({"model_type": "deepseek_v4"}))
    file = checkpoint_directory / "config.json"
    assert lines(checkpoint_directory, checkpoint=checkpoint) == [
        f"{file}: model_type is 'deepseek_v4', deepseek-v4.1-flash has 'deepseek_v41'; name the right model"
    ]


def test_pinned_digests_are_compared_when_known(checkpoint_directory: Path, checkpoint: Checkpoint) -> None:
    """Once the description holds digests, full verification uses them."""
    pinned = checkpoint.model_copy(update={"files": {"config.json": "0" * 64, "gone.json": "0" * 64}})
    assert lines(checkpoint_directory, checkpoint=pinned) == []
    assert lines(checkpoint_directory, checkpoint=pinned, full=True) == [
        f"{checkpoint_directory / 'config.json'}: differs from the pinned sha256; fetch it again at revision dba1be0a",
        f"{checkpoint_directory / 'gone.json'}: is missing; fetch it again at revision dba1be0a",
    ]
