"""What README.md tells of the results, from the result lines: gains of every op, and of the served models."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable

Record = dict[str, Any]
_FAMILY = re.compile(r"[a-z]+(-only)?(-c\d)?")


def gain(kernel: Record, stock: Record) -> float | None:
    """The engine's time over ours, None when either has none."""
    if "median_us" in kernel and "median_us" in stock:
        return float(stock["median_us"] / kernel["median_us"])
    return None


def gains_over(records: list[Record]) -> dict[str, list[tuple[Record, float]]]:
    """Of one op on one GPU: for each of the engine's paths that was timed, its records with the gain over each."""
    kernels = {record["problem"]: record for record in records if record["path"] == "kernel"}
    found: dict[str, list[tuple[Record, float]]] = {}
    for record in records:
        ratio = gain(kernels.get(record["problem"], {}), record)
        if ratio and record["path"] != "kernel":
            found.setdefault(record["path"], []).append((record, ratio))
    return found


def _span(ratios: Iterable[float]) -> str:
    shown = sorted({f"{ratio:.2f}" for ratio in ratios}, key=float)
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def _by_family(gains: list[tuple[Record, float]]) -> str:
    """Ranges of the cases that begin alike (decode, verify-c2 ...), and have as many heads where an op's cases differ in those."""
    several = len({record["sizes"].get("heads") for record, _ in gains}) > 1
    families: dict[str, list[float]] = {}
    for record, ratio in gains:
        named = _FAMILY.match(record["problem"])
        name = (named[0] if named else "") + (f" of {record['sizes']['heads']} heads" if several else "")
        families.setdefault(name, []).append(ratio)
    return ", ".join(f"{name} {_span(ratios)}".strip() for name, ratios in families.items())


def _behind(gains: list[tuple[Record, float]]) -> str:
    lost = [(record["problem"], ratio) for record, ratio in gains if ratio < 1]
    if not lost:
        return "none"
    name, least = min(lost, key=lambda each: each[1])
    return f"{len(lost)} of {len(gains)}, least {least:.2f} ({name})"


def write_ops(records: list[Record]) -> list[str]:
    """Markdown table: a row for every op and path of the engine; on which GPU, by how much, and where ours is slower."""
    lines = ["| op | GPU | against | gain: the engine's time over ours | slower |", "|---|---|---|---|---|"]
    for gpu in sorted({record["gpu"] for record in records}):
        for op in sorted({record["op"] for record in records}):
            mine = [record for record in records if (record["gpu"], record["op"]) == (gpu, op)]
            for path, gains in gains_over(mine).items():
                lines.append(f"| `{op}` | {gpu} | {path} | {_by_family(gains)} | {_behind(gains)} |")
    return lines


def write_served(directory: pathlib.Path) -> list[str]:
    """Markdown list: for every served model and variant, the gains of decode steps and prefills over its first variant."""
    lines = []
    for path in sorted(directory.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        timed = [record for record in records if record["kind"] in {"decode", "prefill"}]
        variants = list(dict.fromkeys(record["variant"] for record in timed))
        for variant in variants[1:]:
            told: dict[str, list[str]] = {}
            for record in timed:
                key = ("kind", "context", "batch")
                if record["variant"] != variant:
                    continue
                first = next(
                    each for each in timed if each["variant"] == variants[0] and all(each[k] == record[k] for k in key)
                )
                at = f"{record['context']}" + (f" x {record['batch']}" if record["batch"] > 1 else "")
                told.setdefault(record["kind"], []).append(f"{first['median_ms'] / record['median_ms']:.2f} at {at}")
            cases = "; ".join(f"{kind} {', '.join(each)}" for kind, each in told.items())
            some = timed[0]
            setting = f"{some['gpu']}, {some.get('layers', 6)} layers, {some['heads']} heads"
            lines.append(f"- {path.stem} ({setting}), {variant} over {variants[0]}: {cases}")
    return lines


def insert(text: str, section: str, lines: list[str]) -> str:
    """`text` with what stands between `<!-- section -->` and `<!-- /section -->` replaced. Raises ValueError without the marks."""
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{begin} and {end} must each stand once in the page")
    before, rest = text.split(begin)
    return before + "\n".join([begin, "", *lines, "", end]) + rest.split(end)[1]
