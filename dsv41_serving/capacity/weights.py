"""Bytes of weights on each GPU of an engine, by what they are for. Pure.

V4.1: experts MXFP4 (4 bits and one 8-bit scale per 32), dense matrices fp8 with one scale per 32 x 32 (kept in fp32 for
DeepGEMM), WO-A expanded to bf16 at load, mHC and router in fp32 (SGLang 0.5.23, srt/models/deepseek_v4.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41_serving.capacity.engine import EngineSettings
    from dsv41_serving.capacity.shape import ModelShape

_FP4_EXPERT = 0.5 + 1 / 32
_FP8_DENSE = 1 + 4 / (32 * 32)
_BF16, _FP32 = 2, 4
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Weights:
    """Bytes on each GPU, and on the host for the whole engine."""

    experts: int
    dense: int
    embeddings: int
    draft: int
    """Stages of the speculative draft."""
    engram_gpu: int
    engram_host: int

    @property
    def gpu(self) -> int:
        """Everything that lies on one GPU."""
        return self.experts + self.dense + self.embeddings + self.draft + self.engram_gpu


def weigh(shape: ModelShape, engine: EngineSettings) -> Weights:
    """Return the weights of one rank of `engine`."""
    return _weigh_v41(shape, engine) if shape.is_v41 else _weigh_dense(shape, engine)


def pad_intermediate(size: int, engine: EngineSettings) -> int:
    """Return the columns of one expert that a rank stores, `size` being those of the whole expert.

    Split over the ranks that do not split experts; FlashInfer's TRT-LLM runner (compute capability 10.x) pads to 128,
    Marlin to 64 on 9.0 and to 128 elsewhere (srt/layers/quantization/mxfp4_*_moe.py, marlin_utils_fp4.py).
    """
    share = size * engine.ep // engine.tp
    unit = 64 if engine.compute_capability == "9.0" else 128
    return -(-share // unit) * unit


def _weigh_v41(shape: ModelShape, engine: EngineSettings) -> Weights:
    hidden, tp, layers = shape.hidden_size, engine.tp, shape.num_hidden_layers
    columns = pad_intermediate(shape.moe_intermediate_size, engine)
    per_expert = 3 * hidden * columns * (_FP4_EXPERT if engine.fp4_experts else _FP8_DENSE)
    experts = shape.n_routed_experts // engine.ep * per_expert
    shared = shape.n_shared_experts * 3 * hidden * shape.moe_intermediate_size // tp * _FP8_DENSE
    layer = shared + _attention(shape, tp) + _small(shape)
    # A stage of the draft is a layer with attention and experts of its own (srt/models/deepseek_v4_dspark.py).
    stages = shape.draft_stages if engine.draft_tokens else 0
    return Weights(
        experts=round(layers * experts),
        dense=round(layers * layer + _indexers(shape) + _gates(shape)),
        embeddings=2 * shape.vocab_size * hidden * _BF16 // tp,
        draft=round(stages * (experts + layer)),
        engram_gpu=_engram_bytes(shape) // tp if engine.engram == "hbm" else 0,
        engram_host=_engram_bytes(shape) * {"host_shared": 1, "host_per_rank": tp}.get(engine.engram, 0),
    )


def _attention(shape: ModelShape, tp: int) -> float:
    hidden, width = shape.hidden_size, shape.num_attention_heads * shape.head_dim
    down = hidden * (shape.q_lora_rank + shape.head_dim)  # every rank has all of it
    split = shape.q_lora_rank * width + shape.o_groups * shape.o_lora_rank * hidden
    wo_a = shape.o_lora_rank * width  # bf16 after loading: [groups, rank, width / groups]
    return down * _FP8_DENSE + split / tp * _FP8_DENSE + wo_a / tp * _BF16


def _indexers(shape: ModelShape) -> float:
    """Index queries and per-head weights on every index source, compressors and key projections on every KV source."""
    queries = shape.q_lora_rank * shape.index_n_heads * shape.index_head_dim * _FP8_DENSE
    heads = shape.hidden_size * shape.index_n_heads * _BF16
    compressors = 2 * shape.hidden_size * shape.head_dim * _BF16 + shape.head_dim * shape.index_head_dim * _BF16
    return len(shape.index_source_layer_ids) * (queries + heads) + len(shape.kv_source_layer_ids) * compressors


def _small(shape: ModelShape) -> float:
    """MHC of both sublayers (24 x 4 hidden, fp32) and the router."""
    streams = shape.hc_mult
    return (
        2 * (2 + streams) * streams * streams * shape.hidden_size * _FP32
        + shape.n_routed_experts * shape.hidden_size * _FP32
    )


def _gates(shape: ModelShape) -> float:
    """The projection of Engram rows: columns x head_dim -> one key per stream and a value; every rank has all of it."""
    rows = shape.engram_columns * shape.engram_head_dim
    return len(shape.engram_layer_ids) * rows * (shape.hc_mult + 1) * shape.hidden_size * _FP8_DENSE


def _engram_bytes(shape: ModelShape) -> int:
    return len(shape.engram_layer_ids) * shape.engram_rows_per_table * shape.engram_row_bytes


def _weigh_dense(shape: ModelShape, engine: EngineSettings) -> Weights:
    """Llama: q, k, v, o, three MLP matrices and two norms a layer, one more norm, embedding and output."""
    hidden, width = shape.hidden_size, _BYTES[engine.dtype if engine.dtype in _BYTES else shape.torch_dtype]
    kv = max(shape.num_key_value_heads, engine.tp) * shape.head_dim
    split = hidden * (2 * shape.num_attention_heads * shape.head_dim + 2 * kv + 3 * shape.intermediate_size)
    norms = (2 * shape.num_hidden_layers + 1) * hidden
    tables = 1 if shape.tie_word_embeddings else 2
    return Weights(
        experts=0,
        dense=(shape.num_hidden_layers * split // engine.tp + norms) * width,
        embeddings=tables * shape.vocab_size * hidden * width // engine.tp,
        draft=0,
        engram_gpu=0,
        engram_host=0,
    )
