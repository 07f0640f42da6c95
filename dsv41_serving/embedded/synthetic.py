"""V4.1's architecture at the size of one rank, without weights: for measuring an engine whose checkpoint nobody has here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_kernels.serve.model import Scale
from dsv41_serving.embedded.canary import read_tokenizer
from dsv41_serving.embedded.model_directory import write_model_directory
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.embedded.description import Synthetic


def build(description: Synthetic, directory: Path) -> None:
    """Write config.json and tokenizer into `directory`; the engine draws the weights (`model.synthetic_seed`).

    Raises InputError when the tokenizer's vocabulary is not that of the architecture.
    """
    tokenizer, vocabulary_size = read_tokenizer(description)
    config = Scale(
        heads=description.heads,
        experts=description.experts,
        context=description.context,
        layers=description.layers,
        expert_width=description.expert_width,
    ).config()
    if vocabulary_size > config["vocab_size"]:
        raise InputError(
            f"the tokenizer has {vocabulary_size} tokens, the model {config['vocab_size']}",
            where=f"model {description.name}, table source",
            remedy="name a tokenizer of DeepSeek-V4",
        )
    write_model_directory(directory, config=config, weights=None, tokenizer=tokenizer, sampling=description.sampling)
