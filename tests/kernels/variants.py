"""Count the variants that serving would compile, without a GPU: run by test_variants.py in a process of its own.

Triton compiles a kernel anew for every combination of its constants and of what it specialises on: integers that are 1 or a multiple
of 16, pointers that are aligned to 16 bytes. Here launches end in a table of those combinations instead of on a device.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from dsv41_kernels import layout
from dsv41_kernels.ops.candidate_scores.kernel import candidate_scores
from dsv41_kernels.ops.candidates.kernel import select_blocks
from dsv41_kernels.ops.compress.kernel import compress
from dsv41_kernels.ops.index_keys.kernel import index_keys
from dsv41_kernels.ops.index_scores.kernel import index_scores, split_rows

BACKEND = make_backend(GPUTarget("cuda", 90, 32))
VARIANTS: dict[str, set[str]] = {}
LENGTHS = (1, 2, 15, 16, 17, 37, 64, 100, 127, 128, 129, 300, 512, 700, 1000, 1024, 1531, 4095, 4096)
"""Rows of a chunk."""
BLOCKS = (16, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Block maxima of a row, those of contexts from 128 to 1M positions."""
BEFORE = (0, 1, 63, 64, 4096, 20011)
"""Positions of the same prompt before it."""


def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:  # noqa: ARG001
    binder = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    options = {name: value for name, value in kwargs.items() if name.startswith("num_")}
    bound = {name: value for name, value in kwargs.items() if name in kernel.signature.parameters}
    _, specialization, _ = binder(*args, **bound)
    VARIANTS.setdefault(kernel.fn.__name__, set()).add(repr((specialization, options)))


def chunk_of(buffer: torch.Tensor, first: int, rows: int) -> torch.Tensor:
    """A slice, as the engine cuts a batch: its address depends on where it begins."""
    return buffer[first : first + rows]


def score_prefill(rows: int, before: int, first: int) -> None:
    count = before + rows
    index_scores(
        torch.empty(rows, 32, layout.INDEX_DIM, dtype=torch.bfloat16),
        torch.empty(rows, 32, dtype=torch.bfloat16),
        torch.zeros(rows, dtype=torch.int32),
        torch.empty(1, count, dtype=torch.int32),
        chunk_of(torch.empty(first + rows, dtype=torch.int32), first, rows),
        torch.empty(1, 4352, dtype=torch.uint8),
        ratio=1,
        max_length=count,
        group_rows=8,
        starts=split_rows([rows], 8, "cpu"),
    )


def store_keys(rows: int, first: int, ratio: int) -> None:
    index_keys(
        latent=torch.empty(rows, 512, dtype=torch.bfloat16),
        weight=torch.empty(128, 512, dtype=torch.bfloat16),
        norm_weight=torch.empty(128, dtype=torch.bfloat16),
        eps=1e-6,
        positions=chunk_of(torch.empty(first + rows, dtype=torch.int64), first, rows),
        location=chunk_of(torch.empty(first + rows, dtype=torch.int64), first, rows),
        table=torch.empty(64, 64),
        cache=torch.empty(1, 4352, dtype=torch.uint8),
        ratio=ratio,
        slots=64,
    )


def compress_chunk(rows: int, first: int, requests: int, ratio: int) -> None:
    pair = ratio == 2
    values = torch.empty(rows, 512, dtype=torch.float32 if pair else torch.bfloat16)
    compress(
        kv=values,
        score=values if pair else None,
        ring=torch.empty(4, 1024) if pair else None,
        norm_weight=torch.empty(512, dtype=torch.bfloat16),
        eps=1e-6,
        positions=chunk_of(torch.empty(first + rows, dtype=torch.int64), first, rows),
        request=torch.empty(rows, dtype=torch.int64),
        location=chunk_of(torch.empty(first + rows, dtype=torch.int64), first, rows),
        start=torch.empty(requests, dtype=torch.int32),
        length=torch.empty(requests, dtype=torch.int32),
        table=torch.empty(64, 64),
        cache=torch.empty(1, layout.LAYOUTS["v4"].page_bytes(256 // ratio), dtype=torch.uint8),
        ring_size=2,
        layout="v4",
        slots=256 // ratio,
    )


def select_listed(rows: int, first: int) -> None:
    length = chunk_of(torch.empty(first + rows, dtype=torch.int32), first, rows)
    for blocks in BLOCKS:
        select_blocks(torch.empty(rows, blocks), length, count=2048, pin_newest=True)
        select_blocks(torch.empty(rows, blocks), length, count=512, pin_newest=False)
    candidate_scores(
        torch.empty(rows, 32, layout.INDEX_DIM, dtype=torch.bfloat16),
        torch.empty(rows, 32, dtype=torch.bfloat16),
        chunk_of(torch.empty(first + rows, dtype=torch.int32), first, rows),
        torch.empty(1, 32768, dtype=torch.int32),
        length,
        torch.empty(1, 4352, dtype=torch.uint8),
        torch.empty(rows, 2048, dtype=torch.int32),
        ratio=1,
        topk=512,
    )


def main() -> None:
    """Serve chunks of every kind, and print how many variants of each kernel they met."""
    JITFunction.run = note
    for rows in LENGTHS:
        for at, before in enumerate(BEFORE):
            score_prefill(rows, before, at)
        for first in range(3):
            select_listed(min(rows, 16), first)
            for ratio in (1, 2):
                store_keys(rows, first, ratio)
                for requests in (1, 2, 16):
                    compress_chunk(rows, first, min(requests, rows), ratio)
    json.dump({name: len(found) for name, found in VARIANTS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
