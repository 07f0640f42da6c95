"""The tokenizer beside V4.1's config.json, which transformers does not know, is read all the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dsv41_kernels.serve.model import Scale
from dsv41_serving.bench.tokenizer import link_tokenizer, load_words
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """V4.1's own config.json, and a byte-level tokenizer of six letters and three words."""
    directory = tmp_path / "v41"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(Scale().config()))
    (directory / "model.safetensors").write_bytes(b"weights")
    pieces = ["Ġ", "a", "b", "c", "d", "e", "Ġa", "Ġb", "Ġc"]
    built = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [("Ġ", letter) for letter in "abc"]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return directory


def test_words_are_read_beside_a_config_that_transformers_does_not_know(model: Path) -> None:
    words = load_words(model)
    text = words.write(12, "a seed")
    assert len(text.split()) == 12
    assert set(text.split()) <= {"a", "b", "c"}


def test_links_are_of_the_tokenizer_alone_and_bear_the_model_s_name(model: Path, tmp_path: Path) -> None:
    linked = link_tokenizer(model, tmp_path / "place")
    assert linked == link_tokenizer(model, tmp_path / "place")  # a second round finds them
    assert linked.name == "v41"
    assert {file.name for file in linked.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert (linked / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


def test_a_directory_without_a_tokenizer_is_said(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer there \(tokenizer.json\).*start the deployment once"):
        load_words(model)


def test_a_tokenizer_that_cannot_be_read_is_said(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"not": "a tokenizer"}')
    with pytest.raises(InputError, match=r"the tokenizer cannot be read .*dsv41 model --hashes"):
        load_words(model)
