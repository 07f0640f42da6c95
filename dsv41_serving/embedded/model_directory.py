"""Write a model in the layout of a Hugging Face directory, as SGLang and transformers read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from dsv41_serving.embedded import special_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from dsv41_serving.embedded.description import Sampling
    from dsv41_serving.embedded.special_tokens import TokenizerJson


def write_model_directory(
    directory: Path,
    *,
    config: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor] | None,
    tokenizer: TokenizerJson,
    sampling: Sampling,
) -> None:
    """Write config.json, tokenizer.json, tokenizer_config.json, generation_config.json and, if given, model.safetensors.

    The ids of begin, end and pad come from the tokenizer. No chat template is written: the V4.1 encoder renders.
    """
    ids = special_tokens.added_ids(tokenizer)
    control = {
        "bos_token_id": ids[special_tokens.BEGIN],
        "eos_token_id": ids[special_tokens.END],
        "pad_token_id": ids[special_tokens.PAD],
    }
    _write_json(directory / "config.json", {**config, **control})
    _write_json(directory / "generation_config.json", {**control, "do_sample": True, **sampling.model_dump()})
    _write_json(directory / "tokenizer.json", tokenizer)
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special_tokens.BEGIN,
            "eos_token": special_tokens.END,
            "pad_token": special_tokens.PAD,
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )
    if weights is not None:
        save_file(dict(weights), directory / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
