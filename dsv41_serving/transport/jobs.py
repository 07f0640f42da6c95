"""What is moved: a ladder of contiguous writes, several at once, and one prompt's hand-off as the pools lie in memory. Pure.

SGLang's NIXL path writes page by page and pool by pool, and each block is a descriptor (srt/disaggregation/nixl/conn.py):
on NVLink a block costs about 7.5 microseconds whatever its size, so the shape of the memory matters as much as the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.capacity.pools import ENTRIES, INDEX_KEY, size_pools

if TYPE_CHECKING:
    from dsv41_serving.capacity.engine import EngineSettings
    from dsv41_serving.capacity.shape import ModelShape

MIB = 1 << 20
_LADDER_CPU = (1 * MIB, 16 * MIB, 64 * MIB)
_LADDER_GPU = (1 * MIB, 16 * MIB, 64 * MIB, 512 * MIB)
_AT_ONCE = 4
PROMPT_TOKENS = 4096


@dataclass(frozen=True)
class Job:
    """One kind of transfer. `blocks` are the bytes of its descriptors, which never touch each other in memory."""

    name: str
    blocks: tuple[int, ...]
    at_once: int = 1
    """Transfers of this kind in flight together, each with memory of its own."""

    @property
    def bytes(self) -> int:
        """Bytes of one round."""
        return sum(self.blocks) * self.at_once


def list_jobs(shape: ModelShape, decode: EngineSettings, *, on_gpu: bool) -> tuple[Job, ...]:
    """Return the jobs for a pair whose receiving engine is `decode`."""
    ladder = _LADDER_GPU if on_gpu else _LADDER_CPU
    prompt = min(PROMPT_TOKENS, decode.context)
    return (
        *(Job(f"1 x {size // MIB} MiB", (size,)) for size in ladder),
        Job(f"{_AT_ONCE} x 16 MiB at once", (16 * MIB,), _AT_ONCE),
        Job(f"prompt of {prompt} tokens", list_prompt_blocks(shape, decode, prompt)),
    )


def shorten(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return what a start waits for: one bulk write and the prompt."""
    return tuple(job for job in jobs if job.blocks == (16 * MIB,) and job.at_once == 1) + jobs[-1:]


def list_prompt_blocks(shape: ModelShape, decode: EngineSettings, tokens: int) -> tuple[int, ...]:
    """Return the blocks in which the KV of a prompt of `tokens` lies in the pools of one rank, as bytes.

    V4.1: every page of every source, its index keys, and the last window of every layer. Others: one run for the keys
    and one for the values of each layer, because neighbouring pages are joined.
    """
    if not shape.is_v41:
        per_layer = size_pools(shape, decode).bytes_per_token / (2 * shape.num_hidden_layers)
        return (round(tokens * per_layer),) * (2 * shape.num_hidden_layers)
    pages = -(-tokens // decode.page)
    entry, window = ENTRIES[decode.layout], ENTRIES["v4" if decode.layout == "v4" else "v41"]
    blocks: list[int] = []
    for ratio in shape.source_ratios:
        rows = decode.page // ratio
        blocks += [entry.page_bytes(rows)] * pages
        blocks += [rows * INDEX_KEY.bytes] * pages
    blocks += [window.page_bytes(decode.page)] * shape.num_hidden_layers
    return tuple(blocks)
