"""The least time of a decode step: what it must read from memory, over the bandwidth. Pure, but for one measurement.

weights   dense and output once; of the experts those that some row of the batch is routed to
V4.1      index keys of every KV source over the whole context, of the reindex layers over the candidates; in each layer
the selected entries and the window
others    the whole KV of each request
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

from dsv41_serving.capacity.pools import ENTRIES, INDEX_KEY, size_pools
from dsv41_serving.capacity.weights import weigh

if TYPE_CHECKING:
    from dsv41_serving.capacity.engine import EngineSettings
    from dsv41_serving.capacity.shape import ModelShape

# Bytes per second of a board's memory, from NVIDIA's datasheets of H200, B200, GB300 and RTX PRO 6000 Blackwell.
BANDWIDTH = {"9.0": 4.8e12, "10.0": 8.0e12, "10.3": 8.0e12, "12.0": 1.792e12}
_COPY_BYTES = 64 << 20
_COPIES = 5


def find_bandwidth(engine: EngineSettings) -> float | None:
    """Return the bytes per second of the memory `engine` reads: of its board, or of this host as one copy gets them."""
    if engine.device == "cpu":
        return measure_copy()
    return BANDWIDTH.get(engine.compute_capability)


def step_bytes(shape: ModelShape, engine: EngineSettings, requests: int, context: int) -> float:
    """Return the bytes each GPU reads in one decode step of `requests` that hold `context` tokens each."""
    weights = weigh(shape, engine)
    rows = requests * (engine.draft_tokens or 1)
    read = weights.dense + weights.embeddings / (1 if shape.tie_word_embeddings else 2)
    if not shape.is_v41:
        return read + requests * context * size_pools(shape, engine).bytes_per_token
    idle = (1 - shape.num_experts_per_tok / shape.n_routed_experts) ** rows if shape.n_routed_experts else 1.0
    return read + weights.experts * (1 - idle) + requests * _request_bytes(shape, engine, context)


def least_step_s(shape: ModelShape, engine: EngineSettings, requests: int, context: int, bandwidth: float) -> float:
    """Return the seconds below which no step of `requests` with `context` tokens each can be."""
    return step_bytes(shape, engine, requests, context) / bandwidth


def measure_copy() -> float:
    """Return the bytes per second that one thread reads and writes when it copies memory: the best of a few copies."""
    source, target = ctypes.create_string_buffer(_COPY_BYTES), ctypes.create_string_buffer(_COPY_BYTES)
    best = float("inf")
    for _ in range(_COPIES):
        began = time.perf_counter()
        ctypes.memmove(target, source, _COPY_BYTES)
        best = min(best, time.perf_counter() - began)
    return 2 * _COPY_BYTES / best


def _request_bytes(shape: ModelShape, engine: EngineSettings, context: int) -> float:
    candidates = shape.candidate_topk_blocks * shape.candidate_block_size
    sources = set(shape.kv_source_layer_ids)
    scanned = sum(
        context / shape.compress_ratios[layer] if layer in sources else min(candidates, context)
        for layer in shape.index_source_layer_ids
    )
    window = min(shape.sliding_window, context) * ENTRIES["v4" if engine.layout == "v4" else "v41"].bytes
    selected = sum(min(shape.index_topk, context / ratio) for ratio in shape.compress_ratios if ratio)
    return scanned * INDEX_KEY.bytes + selected * ENTRIES[engine.layout].bytes + shape.num_hidden_layers * window
