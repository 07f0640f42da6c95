"""GGUF tensors and metadata become what Hugging Face's Llama expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from dsv41_serving.embedded import gguf_source
from dsv41_serving.errors import InputError

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 32


def rotate_interleaved(vector: np.ndarray, position: int) -> np.ndarray:
    """Rotary embedding over neighbouring pairs, as llama.cpp applies it to its own row order."""
    angle = position * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    even, odd = vector[0::2], vector[1::2]
    out = np.empty_like(vector)
    out[0::2], out[1::2] = even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)
    return out


def rotate_halves(vector: np.ndarray, position: int) -> np.ndarray:
    """Rotary embedding over two halves, as Hugging Face's Llama applies it."""
    angle = position * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    low, high = vector[: HEAD_DIM // 2], vector[HEAD_DIM // 2 :]
    return np.concatenate([low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)])


@pytest.mark.parametrize(("query_position", "key_position"), [(0, 0), (5, 2), (117, 31)])
def test_unpermuted_rows_give_the_attention_scores_of_the_original(query_position: int, key_position: int) -> None:
    """q·k after each library's rotation is the same number for the file's rows and for the converted ones."""
    numbers = np.random.default_rng(0)
    query, key = (numbers.standard_normal((HEADS * HEAD_DIM, HIDDEN)).astype(np.float32) for _ in range(2))
    state = numbers.standard_normal(HIDDEN).astype(np.float32)
    converted = [gguf_source.unpermute_rope_rows(each, HEADS) for each in (query, key)]
    for head in range(HEADS):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        native = rotate_interleaved((query @ state)[rows], query_position) @ rotate_interleaved(
            (key @ state)[rows], key_position
        )
        ours = rotate_halves((converted[0] @ state)[rows], query_position) @ rotate_halves(
            (converted[1] @ state)[rows], key_position
        )
        assert ours == pytest.approx(native, rel=1e-4, abs=1e-4)


def test_unpermuting_orders_rows_into_two_halves() -> None:
    """Of a head with 8 rows, the even rows come first, then the odd ones; heads stay in place."""
    weight = np.arange(16, dtype=np.float32)[:, None]
    assert gguf_source.unpermute_rope_rows(weight, heads=2).ravel().tolist() == [
        *(0, 2, 4, 6, 1, 3, 5, 7),
        *(8, 10, 12, 14, 9, 11, 13, 15),
    ]


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """One layer in a GGUF file: a quantised embedding, the rest float32."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(6)
    shapes = {
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (64, HIDDEN),
        "blk.0.ffn_up.weight": (64, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, 64),
    }
    numbers = np.random.default_rng(2)
    tensors = {name: numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    embedding = numbers.standard_normal((6, HIDDEN)).astype(np.float32)
    quantised = gguf.quantize(embedding, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    tensors["token_embd.weight"] = embedding
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, tensors


def test_config_and_weights_of_a_file(tiny_gguf: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Every tensor gets its Hugging Face name, [out, in] shape and bf16 values; q and k alone are reordered."""
    path, tensors = tiny_gguf
    reader = gguf.GGUFReader(path)
    config = gguf_source.read_config(gguf_source.read_fields(reader), path)
    assert config["head_dim"] == HEAD_DIM
    assert config["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-5
    weights = gguf_source.read_weights(reader, config)
    assert len(weights) == len(tensors)

    def bf16(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).bfloat16()

    layer = "model.layers.0."
    for theirs, ours in {
        "blk.0.attn_v.weight": f"{layer}self_attn.v_proj.weight",
        "blk.0.attn_output.weight": f"{layer}self_attn.o_proj.weight",
        "blk.0.ffn_down.weight": f"{layer}mlp.down_proj.weight",
        "blk.0.ffn_norm.weight": f"{layer}post_attention_layernorm.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        assert torch.equal(weights[ours], bf16(tensors[theirs]))
    keys = gguf_source.unpermute_rope_rows(tensors["blk.0.attn_k.weight"], KV_HEADS)
    assert torch.equal(weights[f"{layer}self_attn.k_proj.weight"], bf16(keys))
    # Q8_0 keeps a scale and signed bytes: at most half a step of the largest value in 32.
    embedding = torch.from_numpy(tensors["token_embd.weight"])
    assert (weights["model.embed_tokens.weight"].float() - embedding).abs().max() < embedding.abs().max() / 127


def test_another_architecture_is_refused() -> None:
    """A GGUF file that is not Llama is named, with the file and the way out."""
    with pytest.raises(InputError, match=r"x\.gguf: holds architecture 'qwen3', not 'llama'; install"):
        gguf_source.read_config({"general.architecture": "qwen3"}, Path("x.gguf"))


@pytest.mark.parametrize("fields", [("llama", "smollm"), ("gpt2", "qwen2")])
def test_an_unknown_tokenizer_is_refused(fields: tuple[str, str]) -> None:
    """Another splitting rule would give silently wrong ids, so it is an error."""
    metadata: dict[str, Any] = {"tokenizer.ggml.model": fields[0], "tokenizer.ggml.pre": fields[1]}
    with pytest.raises(ValueError, match="only 'gpt2' with 'smollm' is known"):
        gguf_source.read_tokenizer(metadata)
