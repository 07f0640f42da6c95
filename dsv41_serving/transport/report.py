"""A proof for people: one table for each pair, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsv41_serving.transport.proof import Pair, Proof


def describe_proof(proof: Proof) -> RenderableType:
    """Return every pair with its steps, then the baseline as one line."""
    parts: list[RenderableType] = []
    for pair in proof.pairs:
        parts += [_tabulate(pair), *map(Text, list_problems(pair)), Text()]
    return Group(
        *parts,
        Text(
            f"baseline: {proof.best_gb_s:.2f} GB/s over {proof.lane}, one prompt in {proof.prompt_ms:.1f} ms; as {proof.user}"
        ),
    )


def list_problems(pair: Pair) -> list[str]:
    """Return what is wrong with a pair, one line each; none when it is as fast as its link."""
    lines = [] if pair.matched else ["the bytes that arrived are not those that were sent: do not serve on this lane"]
    if pair.reason:
        lines.append(f"slow: {pair.reason}; mend: {pair.remedy}")
    return lines


def _tabulate(pair: Pair) -> Table:
    where = f" (GPU {pair.gpus[0]} -> {pair.gpus[1]})" if pair.gpus else ""
    named = ", ".join(pair.lanes) or "nothing"
    table = Table(
        title=f"{pair.prefill} -> {pair.decode}{where}: {pair.lane} (UCX names {named})",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("write")
    for column in ("blocks", "MB", "GB/s median", "GB/s best", "ms median", "ms first"):
        table.add_column(column, justify="right")
    for step in pair.steps:
        table.add_row(
            step.name,
            str(step.blocks),
            f"{step.bytes / 1e6:.1f}",
            f"{step.median_gb_s:.2f}",
            f"{step.best_gb_s:.2f}",
            f"{step.median_ms:.2f}",
            f"{step.first_ms:.2f}",
        )
    return table
