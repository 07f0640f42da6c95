"""The served model's results as Markdown, for kernels/RESULTS.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib

_HEAD = """## In the engine

Six-layer model of `dsv41_kernels.serve.model` (every kind of layer, real widths, synthetic weights, FP8 experts in SGLang's Triton
runner) served by SGLang 0.5.23 with CUDA graphs, one GPU per variant. Decode: time per token of a running stream. Prefill: time to the first
token of a fresh prompt. Medians in ms over the rounds (least to largest); "gain" is stock's time over the variant's.
"""


def write_table(directory: pathlib.Path) -> list[str]:
    """Lines for every `*.jsonl` of `directory`; none when there is no result."""
    lines: list[str] = []
    for path in sorted(directory.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines += _times([record for record in records if record["kind"] in ("decode", "prefill")])
    return [_HEAD, *lines] if lines else []


def _times(records: list[dict[str, Any]]) -> list[str]:
    variants = list(dict.fromkeys(record["variant"] for record in records))
    first, others = variants[0], variants[1:]
    lines = ["| | tokens | batch | " + f"{first} | " + " | ".join(f"{name} | gain" for name in others) + " |"]
    lines.append("|---|---|---|---|" + "---|---|" * len(others))
    cases = dict.fromkeys((record["kind"], record["context"], record["batch"]) for record in records)
    for kind, context, batch in cases:
        found = {
            record["variant"]: record
            for record in records
            if (record["kind"], record["context"], record["batch"]) == (kind, context, batch)
        }
        cells = [kind, str(context), str(batch), _time(found[first])]
        for name in others:
            gain = found[first]["median_ms"] / found[name]["median_ms"]
            cells += [_time(found[name]), f"**{gain:.2f}**"]
        lines.append("| " + " | ".join(cells) + " |")
    some = records[0]
    kernels = dict.fromkeys((record["variant"], record["kernels"]) for record in records)
    lines += ["", *(f"- {name}: `DSV41_KERNELS={text}`" for name, text in kernels)]
    lines.append(
        f"- {some['gpu']}, {some['heads']} heads, driver {some['driver']}, torch {some['torch']}, triton {some['triton']}, "
        f"sglang {some['sglang']}, {some['date']}, commit {some['commit']}; `{some['command']}`"
    )
    return [*lines, ""]


def _time(record: dict[str, Any]) -> str:
    return f"{record['median_ms']:.2f} ({record['lowest_ms']:.2f}..{record['highest_ms']:.2f})"
