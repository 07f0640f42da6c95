"""Bytes of the KV pools: what a token costs, what a request costs, and what a page rounds up to. Pure.

    V4.1     global KV       per KV source of ratio r: an entry and an index key for every r tokens
             window          584 or 528 bytes a token and layer, for as many tokens as the cap of running requests needs
             pair state      two fp32 rows of 2 x head_dim for each request slot on each source of ratio 2
    others   2 x layers x KV heads x head_dim x element size a token

Formulas and rounding follow SGLang 0.5.23: srt/model_executor/pool_configurator.py (DSV4PoolConfigurator,
compute_swa_request_cap) and kernels/ops/attention/dsv4/kv_layout.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv41_serving.capacity.engine import EngineSettings
    from dsv41_serving.capacity.shape import ModelShape

_INDEX_PAGE = 64
_TAILS_PER_REQUEST = 4
_KV_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Entry:
    """Bytes of one cache row, and what the stride of a page is rounded up to."""

    bytes: int
    align: int

    def page_bytes(self, rows: int) -> int:
        """Return the bytes of a page of `rows`."""
        return -(-rows * self.bytes // self.align) * self.align

    def padded(self, rows: int) -> float:
        """Return the bytes of one row with its share of the padding of a page of `rows`."""
        return self.page_bytes(rows) / rows


ENTRIES = {"v4": Entry(584, 576), "v41": Entry(528, 512), "v41_fp4": Entry(288, 256)}
INDEX_KEY = Entry(68, 1)
LOGICAL_ENTRY = ENTRIES["v41_fp4"]
"""What the model itself needs: 288 bytes, the entry the published 890 bytes a token are made of."""


@dataclass(frozen=True)
class Pools:
    """Sizes of the pools of one rank; every rank of a TP group holds all of it."""

    bytes_per_token: float
    """Global KV and index keys of one token, padding included."""
    main_bytes_per_token: float
    index_bytes_per_token: float
    logical_bytes_per_token: float
    """The same in the entry format of the model, without padding."""
    window_tokens: int
    window_bytes: int
    state_bytes: int
    fixed_bytes: int
    """Everything that does not grow with the tokens: window, states, pages held back."""

    def tokens_in(self, available: int, page: int) -> int:
        """Return how many tokens fit into `available` bytes, whole pages; negative when the fixed part alone does not."""
        return int((available - self.fixed_bytes) // self.bytes_per_token) // page * page

    def bytes_of(self, tokens: int) -> int:
        """Return the bytes of pools for `tokens`."""
        return round(tokens * self.bytes_per_token) + self.fixed_bytes


def size_pools(shape: ModelShape, engine: EngineSettings) -> Pools:
    """Return what the pools of `engine` cost."""
    return _size_v41(shape, engine) if shape.is_v41 else _size_plain(shape, engine)


def window_tokens(shape: ModelShape, engine: EngineSettings) -> int:
    """Return the tokens of the window pool that SGLang reserves for the cap of running requests (`mode=cap`).

    A request holds its window, what is not evicted yet, a page to align, and what the next step allocates; prefill adds
    the chunks in flight, and every cached prefix keeps a tail: without a prefix cache, as on a decode engine, there is none.
    """
    per_step = engine.draft_tokens or 1
    ahead = engine.page if not engine.draft_tokens else 2 * max(engine.page, engine.draft_tokens)
    request = shape.sliding_window + engine.eviction_interval * per_step + engine.page + ahead
    cap = request * engine.max_running_requests
    if engine.role == "decode":
        cap += (shape.sliding_window + engine.page) * engine.extra_slots
    else:
        cap += (2 if engine.overlap else 1) * engine.chunk + engine.page
    default = _TAILS_PER_REQUEST * engine.max_running_requests if engine.radix_cache else 0
    tails = default if engine.prefix_tails is None else engine.prefix_tails
    headroom = tails * (shape.sliding_window + engine.page)
    return -(-(cap + headroom) // engine.page) * engine.page


def hand_off_bytes(shape: ModelShape, engine: EngineSettings, prompt: int) -> int:
    """Return the bytes that travel for a prompt of `prompt` tokens: whole pages of every source, the last window, states."""
    if not shape.is_v41:
        return round(prompt * size_pools(shape, engine).bytes_per_token)
    pools = size_pools(shape, engine)
    pages = -(-prompt // engine.page)
    window_pages = -(-shape.sliding_window // engine.page)
    window = window_pages * ENTRIES[_window_layout(engine)].page_bytes(engine.page) * shape.num_hidden_layers
    rings = sum(ratio == 2 for ratio in shape.source_ratios) * _ring_rows(engine) * 2 * shape.head_dim * 4  # noqa: PLR2004
    return round(pages * engine.page * pools.bytes_per_token) + window + rings


def _size_v41(shape: ModelShape, engine: EngineSettings) -> Pools:
    entry = ENTRIES[engine.layout]
    ratios = shape.source_ratios
    main = sum(entry.padded(engine.page // ratio) / ratio for ratio in ratios)
    index = sum(INDEX_KEY.bytes / ratio for ratio in ratios)
    logical = sum((LOGICAL_ENTRY.bytes + INDEX_KEY.bytes) / ratio for ratio in ratios)
    inflation = (shape.num_hidden_layers + 1) / shape.num_hidden_layers if engine.draft_tokens else 1.0
    tokens = window_tokens(shape, engine)
    window = ENTRIES[_window_layout(engine)].padded(engine.page) * shape.num_hidden_layers * inflation
    slots = engine.max_running_requests + 1 + (engine.extra_slots if engine.role == "decode" else 0)
    rows = slots * _ring_rows(engine) + _ring_rows(engine) + 1
    rows += rows % 2
    states = sum(ratio == 2 for ratio in ratios) * rows * 2 * shape.head_dim * 4  # noqa: PLR2004
    # The allocator never gives out one page of each source, nor one page of its index keys.
    held_back = sum(
        engine.page * entry.padded(engine.page // ratio) + (engine.page // ratio + 2 * _INDEX_PAGE) * INDEX_KEY.bytes
        for ratio in ratios
    )
    return Pools(
        bytes_per_token=(main + index) * inflation,
        main_bytes_per_token=main,
        index_bytes_per_token=index,
        logical_bytes_per_token=logical,
        window_tokens=tokens,
        window_bytes=round(tokens * window),
        state_bytes=states,
        fixed_bytes=round(tokens * window + held_back) + states,
    )


def _window_layout(engine: EngineSettings) -> str:
    """The window of every layer is fp8 in all layouts: only the KV sources have a 288-byte entry."""
    return "v4" if engine.layout == "v4" else "v41"


def _ring_rows(engine: EngineSettings) -> int:
    """Rows in which a request parks unpaired positions: 2, or the power of two that also holds a verify step."""
    return 1 << (engine.draft_tokens + 1).bit_length() if engine.draft_tokens else 2


def _size_plain(shape: ModelShape, engine: EngineSettings) -> Pools:
    element = _KV_BYTES[engine.dtype if engine.dtype in _KV_BYTES else shape.torch_dtype]
    heads = max(1, shape.num_key_value_heads // engine.tp)
    per_token = float(2 * shape.num_hidden_layers * heads * shape.head_dim * element)
    return Pools(
        bytes_per_token=per_token,
        main_bytes_per_token=per_token,
        index_bytes_per_token=0.0,
        logical_bytes_per_token=per_token,
        window_tokens=0,
        window_bytes=0,
        state_bytes=0,
        fixed_bytes=round(per_token * engine.page),  # the page that is never given out
    )
