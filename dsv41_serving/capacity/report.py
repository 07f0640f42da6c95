"""The estimate for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsv41_serving.capacity.estimate import GIB, LOADED_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from dsv41_serving.capacity.estimate import EngineCapacity, NodeCapacity
    from dsv41_serving.capacity.measured import Comparison
    from dsv41_serving.capacity.shape import ModelShape

_MIB = 1 << 20


def describe_node(
    node: NodeCapacity, shape: ModelShape, lengths: Sequence[int], load_s: float | None
) -> RenderableType:
    """Return the estimate of one shape as tables."""
    table = Table(title=f"Shape {node.shape_name}, each GPU", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    for engine in node.engines:
        table.add_column(engine.settings.name, justify="right")
    columns = [dict(_list_rows(engine)) for engine in node.engines]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    lines = [
        Text(f"\nsizes from {shape.origin}"),
        Text(_say_host(node)),
    ]
    if load_s is not None:
        lines.append(Text(f"loading, cold, one engine: about {load_s / 60:.1f} min"))
    return Group(table, Text(), _describe_sessions(node, shape, lengths), *lines, *map(Text, list_shortages(node)))


def describe_shapes(nodes: Sequence[NodeCapacity], shape: ModelShape, lengths: Sequence[int]) -> Table:
    """Return the shapes of a node side by side."""
    table = Table(title="Shapes of this node", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    for node in nodes:
        table.add_column(node.shape_name, justify="right")
    longest = lengths[-1]
    rows: list[tuple[str, list[str]]] = [
        ("weights a GPU", [_gib(max(_count_weights(each) for each in node.engines)) for node in nodes]),
        ("tokens of KV while answering", [f"{node.generating_tokens:,}" for node in nodes]),
        *((f"requests of {_say(each)} at once", [str(node.sessions(each)) for node in nodes]) for each in lengths),
        (f"hand-off of {_say(longest)}, MB a rank", [_say_hand_off(node.hand_off(shape, longest)) for node in nodes]),
        ("fits", [_say_short(node) for node in nodes]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def describe_comparison(rows: Sequence[Comparison]) -> Table:
    """Return prediction against report."""
    table = Table(title="Against the running engines", title_justify="left", show_edge=False, pad_edge=False)
    for title in ("engine", "quantity", "predicted", "reported", "error"):
        table.add_column(title, justify="left" if title in {"engine", "quantity"} else "right")
    for row in rows:
        table.add_row(row.engine, row.quantity, _number(row.predicted), _number(row.reported), f"{row.error:+.2%}")
    return table


def list_shortages(node: NodeCapacity) -> list[str]:
    """Return one line for each engine and each pool of host memory that does not fit: by how much, and what would."""
    lines = []
    for engine in node.engines:
        if not engine.short_bytes:
            continue
        name = engine.settings.name
        if engine.safe_tokens >= engine.settings.context:
            remedy = f"set engines.{name}.max_total_tokens = {engine.safe_tokens}"
        elif engine.staging_bytes >= engine.short_bytes:
            remedy = "lower handoff.slots or handoff.slot_mib"
        elif engine.weights.engram_gpu:
            remedy = "put the Engram tables on the host (memory.engram = 'host_shared'), or choose a larger tp"
        else:
            remedy = f"choose a larger tp, or lower engine.context_length or engines.{name}.max_running_requests"
        lines.append(f"does not fit: {name} is {engine.short_bytes / GIB:.1f} GiB short on each GPU; {remedy}")
    for pool, missing in (node.host_short or {}).items():
        lines.append(f"does not fit: {pool} is {missing / GIB:,.1f} GiB short; {_mend_host(node)}")
    return lines


def _mend_host(node: NodeCapacity) -> str:
    """Return what takes the most of host memory and can be made less."""
    largest = max(node.engines, key=lambda each: each.host_bytes)
    on_cpu = largest.gpu_bytes is None
    if largest.settings.engram == "host_per_rank" and largest.weights.engram_host:
        return "keep one copy of the Engram tables for all ranks (memory.engram = 'host_shared')"
    if on_cpu and 2 * largest.pool_bytes > largest.host_bytes:
        return f"lower engines.{largest.settings.name}.max_total_tokens"
    if largest.weights.engram_host:
        return "put the Engram tables into GPU memory (memory.engram = 'hbm'), or add memory"
    return "choose a smaller shape, or add memory"


def as_json(
    nodes: Sequence[NodeCapacity],
    shape: ModelShape,
    lengths: Sequence[int],
    rows: Sequence[Comparison],
    load_s: float | None,
) -> dict[str, Any]:
    """Return the estimate of every shape, and the comparison with running engines, as JSON values.

    Sizes in bytes; `load_s` are the seconds in which one engine of the chosen shape loads.
    """
    return {
        "sizes_from": shape.origin,
        "shapes": [
            {
                "shape": node.shape_name,
                "fits": node.fits,
                "host_bytes": node.host_bytes,
                "host_short_bytes": node.host_short,
                "short_bytes": node.short,
                "sessions": {str(length): node.sessions(length) for length in lengths},
                "hand_off_bytes": {str(length): node.hand_off(shape, length) for length in lengths},
                "engines": [_engine_json(engine) for engine in node.engines],
            }
            for node in nodes
        ],
        "load_s": None if load_s is None else round(load_s, 1),
        "compared": [row.as_json() for row in rows],
    }


def _engine_json(engine: EngineCapacity) -> dict[str, Any]:
    weights, pools = engine.weights, engine.pools
    return {
        "engine": engine.settings.name,
        "role": engine.settings.role,
        "weights_bytes": {
            "experts": weights.experts,
            "dense": weights.dense,
            "embeddings": weights.embeddings,
            "draft": weights.draft,
            "engram_gpu": weights.engram_gpu,
            "engram_host": weights.engram_host,
        },
        "kv_bytes_per_token": pools.bytes_per_token,
        "logical_bytes_per_token": pools.logical_bytes_per_token,
        "window_tokens": pools.window_tokens,
        "window_bytes": pools.window_bytes,
        "state_bytes": pools.state_bytes,
        "static_bytes": engine.static_bytes,
        "transient_bytes": engine.transient_bytes,
        "decode_graph_bytes": engine.decode_graph_bytes,
        "tail_graph_bytes": engine.tail_graph_bytes,
        "pool_bytes": engine.pool_bytes,
        "staging_bytes": engine.staging_bytes,
        "tokens": engine.tokens,
        "host_bytes": engine.host_bytes,
    }


def _list_rows(engine: EngineCapacity) -> list[tuple[str, str]]:
    weights, pools = engine.weights, engine.pools
    gpu = engine.gpu_bytes is not None
    rows = [
        ("experts", _gib(weights.experts)),
        ("dense", _gib(weights.dense)),
        ("embedding and output", _gib(weights.embeddings)),
        ("draft", _gib(weights.draft)),
        ("Engram in HBM / on host", f"{_gib(weights.engram_gpu)} / {_gib(weights.engram_host)}"),
        ("weights as SGLang counts", _gib(_count_weights(engine))),
        ("KV bytes a token", f"{pools.bytes_per_token:,.1f}"),
        ("  entries / index keys", f"{pools.main_bytes_per_token:,.1f} / {pools.index_bytes_per_token:,.1f}"),
        ("  what the model needs", f"{pools.logical_bytes_per_token:,.1f}"),
        ("window pool", f"{pools.window_tokens:,} tokens, {_gib(pools.window_bytes)}"),
        ("request states", f"{pools.state_bytes / _MIB:.1f} MiB"),
        ("pool tokens", f"{max(0, engine.tokens):,}"),
        ("pools", _gib(engine.pool_bytes)),
        ("staging of the hand-off", _gib(engine.staging_bytes)),
        ("host memory, on its NUMA node", _gib(engine.host_bytes)),
    ]
    if gpu:
        rows += [
            ("graphs and temporary", _gib(engine.beside_bytes - engine.staging_bytes)),
            ("left over", _gib(engine.spare_bytes - engine.beside_bytes)),
        ]
    return rows


def _describe_sessions(node: NodeCapacity, shape: ModelShape, lengths: Sequence[int]) -> Table:
    table = Table(title="Requests at once", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("context", justify="right")
    for engine in node.engines:
        table.add_column(engine.settings.name, justify="right")
    if node.hand_off(shape, lengths[0]):
        table.add_column("hand-off, MB/rank", justify="right")
    for length in lengths:
        row = [_say(length), *(str(engine.sessions(length)) for engine in node.engines)]
        if node.hand_off(shape, length):
            row.append(f"{node.hand_off(shape, length) / 1e6:.1f}")
        table.add_row(*row)
    return table


def _count_weights(engine: EngineCapacity) -> int:
    """Return what the engine will report: on a GPU also what libraries and kernels hold after loading."""
    return engine.weights.gpu + (LOADED_BYTES if engine.gpu_bytes is not None else 0)


def _say_hand_off(count: int) -> str:
    return f"{count / 1e6:.0f}" if count else "-"


def _say_short(node: NodeCapacity) -> str:
    if node.short:
        return f"no, {max(node.short.values()) / GIB:.1f} GiB short"
    if node.host_short:
        return f"no, {max(node.host_short.values()) / GIB:,.1f} GiB of host memory short"
    return "yes" if node.host_short is not None else "on GPUs"


def _say_host(node: NodeCapacity) -> str:
    known = "" if node.host_short is not None else "; not compared, this machine is not the one: --host-memory GIB does"
    return f"host memory for all engines: {node.host_bytes / GIB:,.1f} GiB{known}"


def _say(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if abs(count) >= GIB // 10 else f"{count / _MIB:.1f} MiB"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4f}"
