"""A Llama model small enough for a unit test, and directories shaped like prepared models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaModel

from dsv41_serving.embedded import special_tokens
from dsv41_serving.embedded.manifest import Manifest, list_files

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, HIDDEN = 40, 16


@pytest.fixture
def tiny_network() -> LlamaModel:
    """Two random layers, hidden size 16, frozen."""
    torch.manual_seed(0)
    network = LlamaModel(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.5,  # at 0.02 the layers would hardly change what goes through them
        )
    )
    network.train(mode=False)
    network.requires_grad_(requires_grad=False)
    return network


@pytest.fixture
def tiny_embeddings() -> torch.Tensor:
    """[40, 16], far enough from each other that the most likely token is never a matter of rounding."""
    return torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))


def fill_model_directory(directory: Path) -> None:
    """Write a complete prepared model of a few hundred bytes, its manifest included."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4}))
    tokens = [{"id": i, "content": token} for i, token in enumerate(special_tokens.ALL)]
    (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens, "model": {"vocab": {}}}))
    save_file({"weight": torch.zeros(8, 4), "other": torch.ones(3)}, directory / "model.safetensors")
    Manifest(
        name="toy",
        summary="a test",
        key="0" * 64,
        source="none",
        licence="none",
        environment={},
        check={},
        files=list_files(directory),
    ).write(directory)


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    """A complete prepared model."""
    directory = tmp_path / "toy"
    fill_model_directory(directory)
    return directory
