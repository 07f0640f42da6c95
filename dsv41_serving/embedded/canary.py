"""The random canary: a small Llama network with a DeepSeek tokenizer, for tests of shapes and plumbing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dsv41_serving.embedded import source, special_tokens
from dsv41_serving.embedded.model_directory import write_model_directory

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.embedded.description import Random, RandomWeights, Synthetic
    from dsv41_serving.embedded.special_tokens import TokenizerJson


def build(description: Random, directory: Path) -> None:
    """Write the canary into `directory`. The bits depend on the description alone."""
    tokenizer, vocabulary_size = read_tokenizer(description)
    config = _configure(description.weights, vocabulary_size)
    write_model_directory(
        directory,
        config=config,
        weights=draw_weights(config, description.weights),
        tokenizer=tokenizer,
        sampling=description.sampling,
    )


def read_tokenizer(description: Random | Synthetic) -> tuple[TokenizerJson, int]:
    """Return the description's DeepSeek tokenizer with V4.1's tokens, and the size of its vocabulary."""
    tokenizer = json.loads(source.locate(description.source).read_text(encoding="utf-8"))
    vocabulary_size = 1 + max(token["id"] for token in tokenizer["added_tokens"])
    special_tokens.add_special_tokens(tokenizer, description.renames, vocabulary_size)
    return tokenizer, vocabulary_size


def _configure(shape: RandomWeights, vocabulary_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.hidden_size // shape.num_attention_heads,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def draw_weights(config: dict[str, Any], shape: RandomWeights) -> dict[str, torch.Tensor]:
    """Return every tensor of the network, bf16, from one seeded stream.

    Linear layers keep the variance of their input (deviation 1/sqrt(columns)); norms are one. NumPy's generator gives
    the same numbers on every processor, torch's may not.
    """
    numbers = np.random.default_rng(shape.seed)
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]

    def draw(rows: int, columns: int, deviation: float) -> torch.Tensor:
        values = numbers.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)
        return torch.from_numpy(values).to(torch.bfloat16)

    def linear(rows: int, columns: int) -> torch.Tensor:
        return draw(rows, columns, columns**-0.5)

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": draw(vocabulary, hidden, 1.0)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}input_layernorm.weight": ones.clone(),
            f"{prefix}self_attn.q_proj.weight": linear(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": linear(kv_rows, hidden),
            f"{prefix}self_attn.v_proj.weight": linear(kv_rows, hidden),
            f"{prefix}self_attn.o_proj.weight": linear(hidden, hidden),
            f"{prefix}post_attention_layernorm.weight": ones.clone(),
            f"{prefix}mlp.gate_proj.weight": linear(inner, hidden),
            f"{prefix}mlp.up_proj.weight": linear(inner, hidden),
            f"{prefix}mlp.down_proj.weight": linear(hidden, inner),
        }
    weights["model.norm.weight"] = ones.clone()
    weights["lm_head.weight"] = draw(vocabulary, hidden, shape.logit_scale * hidden**-0.5)
    return weights
