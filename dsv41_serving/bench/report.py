"""A result set, a comparison or a step law as Markdown and as one HTML page that needs nothing else. Pure.

Both are made from the same blocks, so they cannot say different things.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dsv41_serving.bench.compare import compare_sets, list_obstacles, summarise
from dsv41_serving.bench.plot import Series, draw_chart
from dsv41_serving.bench.result import METRICS, TITLES, percentile
from dsv41_serving.bench.step_law import explain, read_laws

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dsv41_serving.bench.compare import Difference
    from dsv41_serving.bench.result import ResultSet, Round, Run
    from dsv41_serving.bench.step_law import Law

_SHARES = tuple(number / 100 for number in range(1, 100))
_SHOWN = (0.1, 0.5, 0.9, 0.99)
_TAILS = "Of all rounds together, the slowest included; a p99 of fewer than a hundred requests is the slowest of them."
_CHARTS = '<div class="charts">'  # those that follow each other stand side by side where there is room
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, .facts th, .facts td, .differences :nth-child(2) { text-align: left; }
.table td + td { white-space: nowrap; }
.wide { overflow-x: auto; }
.slower { color: #d1495b; }
.faster { color: #2e8b57; }
svg { width: 100%; max-width: 44rem; height: auto; display: block; margin: 1rem 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 0 1.5rem; }
figure { margin: 0; min-width: 0; }
figure table { font-size: .85em; }
code { background: #8882; padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
.note { border-left: .25rem solid #c77d0a; padding-left: .8rem; }
"""


@dataclass(frozen=True)
class Block:
    """One part of a page: a heading, a text, a note, a table of figures, facts, or a chart and its points as rows."""

    kind: str
    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


def write_pages(title: str, blocks: Sequence[Block]) -> tuple[str, str]:
    """Return (Markdown, HTML) of a page."""
    return _write_markdown(title, blocks), _write_html(title, blocks)


def describe_set(result: ResultSet) -> list[Block]:
    """Return the blocks of one result set: what was measured, tables, distributions, the step law when there is one."""
    blocks = [Block("text", _say_where(result))]
    blocks += [Block("note", line) for line in _list_caveats(result)]
    ordinary = [name for name in result.scenarios if not name.startswith("step-")]
    if ordinary:
        blocks += [Block("heading", "Medians"), Block("table", rows=_tabulate_medians(result, ordinary))]
        blocks.append(
            Block(
                "text",
                "The roofline of decode: the bytes that every step must read (weights once, experts as far as requests "
                "hit them, KV of each request) over the bandwidth of memory. Speculation can pass it: a step then makes several tokens.",
            )
        )
        blocks += [Block("heading", "Distributions"), Block("text", _TAILS)]
        blocks += [chart for name in ordinary for chart in _draw_distributions([(result.label, result)], name)]
    if laws := read_laws(result):
        blocks += [Block("heading", "Step law"), _draw_laws(laws), *(Block("text", line) for line in explain(laws))]
    blocks += [Block("heading", "How it was measured"), Block("facts", rows=_tabulate_provenance(result))]
    return blocks


def describe_comparison(a: ResultSet, b: ResultSet, floor: float) -> list[Block]:
    """Return the blocks of a comparison: verdicts, every metric, both distributions, both origins."""
    rows = compare_sets(a, b, floor=floor)
    blocks = [Block("text", f"A: {a.label}. {_say_where(a)}"), Block("text", f"B: {b.label}. {_say_where(b)}")]
    blocks += [Block("note", line) for line in list_obstacles(a, b)]
    blocks += [Block("note", f"{side}: {line}") for side, each in (("A", a), ("B", b)) for line in _list_caveats(each)]
    blocks += [Block("heading", "Verdict"), *(Block("text", line) for line in summarise(rows))]
    if rows:
        blocks.append(Block("text", _say_method(rows, floor)))
        blocks += [Block("heading", "Every metric"), Block("differences", rows=_tabulate_differences(rows))]
    compared = list(dict.fromkeys(row.scenario for row in rows))
    if compared:
        blocks += [Block("heading", "Distributions"), Block("text", _TAILS)]
    sides = [(f"A: {a.label}", a), (f"B: {b.label}", b)]
    blocks += [chart for name in compared for chart in _draw_distributions(sides, name)]
    for label, result in (("A", a), ("B", b)):
        blocks += [Block("heading", f"How {label} was measured"), Block("facts", rows=_tabulate_provenance(result))]
    return blocks


def _list_caveats(result: ResultSet) -> list[str]:
    """Return what a reader must know before any number of the set."""
    lines = []
    if result.simulated:
        lines.append(
            f"Acceptance was simulated ({result.simulated} tokens a step): speed only, the text means nothing."
        )
    if "cache_aware" in result.deployment.get("router_policy", ""):
        lines.append(
            "The router's policy is cache_aware: what it remembers of prompts cannot be cleared between rounds, as the caches of "
            "the engines are, so that it sends every round but the warm-up by what it saw before."
        )
    return lines


def _say_method(rows: Sequence[Difference], floor: float) -> str:
    """Return how the rows were judged, by the unit that was."""
    within = any(row.within_launch for row in rows)
    units = (
        "One launch a side: its rounds are compared, and the answer holds for these two launches alone; A and B are means over rounds"
        if within
        else "Launches are compared; A and B are means over launches, of the median of the rounds of each"
    )
    return (
        f"{units}. Judged by Student's t, the 5 % shared out over the scenarios: of twenty comparisons of "
        f"identical configurations one calls a difference by chance. Nothing below the floor of {floor:.1%} is one. "
        "The other metrics below explain a verdict; they decide none."
    )


def _say_where(result: ResultSet) -> str:
    made, deployed = result.provenance, result.deployment
    machine, versions = made.get("machine", {}), made.get("versions", {})
    gpus = made.get("gpus") or "no GPU"
    load = f", load {machine['load']:g} on {machine.get('cores')} cores" if "load" in machine else ""
    scale = deployed.get("scale", 1.0)
    lengths = "" if scale == 1.0 else f" Lengths are {scale:g} times those of the scenarios."
    return (
        f"{deployed.get('profile')} / {deployed.get('shape')}, through the {deployed.get('through')}; "
        f"{machine.get('cpu')}, {gpus}{load}; SGLang {versions.get('sglang')}, NIXL {versions.get('nixl')}; {made.get('date')}; "
        f"{len(result.launches)} {'launch' if len(result.launches) == 1 else 'launches'}.{lengths}"
    )


def _tabulate_medians(result: ResultSet, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    titles = [TITLES[metric] for metric in METRICS]
    rows = [("scenario", "requests", "tokens in + out", "rounds", *titles, "of the roofline")]
    for name in names:
        runs = result.runs_of(name)
        cells = []
        for metric in METRICS:
            values = [run.metrics()[metric] for run in runs if metric in run.metrics()]
            cells.append(say_value(statistics.median(values)) if values else "-")
        rounds = sum(len(run.rounds) for run in runs)
        answers = runs[0].rounds[0].answers
        lengths = f"{runs[0].input_tokens / len(answers):,.0f} + {sum(answers) / len(answers):,.0f}"
        cells.append(_say_share(runs))
        requests = f"{len(answers)} ({runs[0].at_once} at once)"
        rows.append((f"{name}: {runs[0].says}", requests, lengths, str(rounds), *cells))
    return tuple(rows)


def _say_share(runs: Sequence[Run]) -> str:
    """Return how near a step is to the least time in which memory could give what it reads."""
    gaps = [run.metrics()["itl_ms"] for run in runs if "itl_ms" in run.metrics()]
    floor = runs[0].floor_ms
    return f"{floor / statistics.median(gaps):.0%}" if floor and gaps else "-"


def _tabulate_differences(rows: Sequence[Difference]) -> tuple[tuple[str, ...], ...]:
    head = ("scenario", "metric", "A", "B", "change", "noise", "verdict")
    return (
        head,
        *(
            (
                row.scenario,
                TITLES[row.metric],
                say_value(row.a),
                say_value(row.b),
                f"{row.change:+.1%}",
                f"{row.noise:.1%}" if math.isfinite(row.noise) else "-",
                row.judgement,
            )
            for row in rows
        ),
    )


def _tabulate_provenance(result: ResultSet) -> tuple[tuple[str, ...], ...]:
    made = result.provenance
    rows: list[tuple[str, Any]] = [
        ("command", made.get("command")),
        ("commit", made.get("commit")),
        ("versions", ", ".join(f"{name} {version}" for name, version in made.get("versions", {}).items())),
        ("machine", ", ".join(f"{name} {value}" for name, value in made.get("machine", {}).items())),
        ("GPUs", made.get("gpus") or "none"),
        ("plan", str(result.deployment.get("plan_sha256"))[:16]),
        ("overrides", ", ".join(result.deployment.get("overrides", [])) or "none"),
        ("lengths", f"x {result.deployment.get('scale')}"),
    ]
    runs = result.launches[0].runs
    rows += [
        (f"{run.scenario}: prompts", f"{run.input_tokens} tokens, sha256 {run.prompts_sha256[:16]}") for run in runs
    ]
    rows += [("generator", run.command) for run in runs[:1]]
    if len(runs) > 1:
        rows.append(("", f"of {runs[0].scenario}; the others differ in --num-prompts and --max-concurrency"))
    return (("what", "value"), *((name, f"`{value}`" if name else str(value)) for name, value in rows))


def _draw_distributions(sides: Sequence[tuple[str, ResultSet]], name: str) -> list[Block]:
    """Draw what a reader waits for in one scenario: the first token, and each later one."""
    return [
        _draw_shares(f"{name}: time to the first token", "% of requests", sides, name, lambda one: one.ttft_s),
        _draw_shares(
            f"{name}: time between tokens",
            "% of gaps",
            sides,
            name,
            lambda one: (gap for each in one.itl_s for gap in each),
        ),
    ]


def _draw_shares(
    title: str,
    counted: str,
    sides: Sequence[tuple[str, ResultSet]],
    name: str,
    read: Callable[[Round], Iterable[float]],
) -> Block:
    """Draw the share of times that are at most so long, for each side, with a few points of each as rows."""
    series, rows = [], [(title, "count", *(f"p{share * 100:.0f}, ms" for share in _SHOWN), "longest, ms")]
    for label, result in sides:
        times = sorted(value * 1e3 for run in result.runs_of(name) for one in run.rounds for value in read(one))
        if times:
            series.append(Series(label, tuple((percentile(times, share), share * 100) for share in _SHARES)))
            shown = (*(percentile(times, share) for share in _SHOWN), times[-1])
            rows.append((label, f"{len(times):,}", *map(say_value, shown)))
    return Block("chart", draw_chart(title, "ms", counted, series, legend_below=True), tuple(rows))


def _draw_laws(laws: Sequence[Law]) -> Block:
    series = []
    for law in laws:
        last = law.points[-1].requests
        series.append(
            Series(
                f"after {law.prompt} tokens: {law.a_s * 1e3:.2f} ms + {law.b_s * 1e3:.3f} ms x requests",
                ((0.0, law.a_s * 1e3), (float(last), law.at(last) * 1e3)),
            )
        )
    dots = [
        Series(
            f"measured after {law.prompt} tokens",
            tuple((float(point.requests), point.step_s * 1e3) for point in law.points),
            line=False,
            dots=True,
            like=number,
        )
        for number, law in enumerate(laws)
    ]
    levels = sorted({point.requests for law in laws for point in law.points})
    rows = [("requests at once, ms", *map(str, levels))]
    for law in laws:
        steps = {point.requests: say_value(point.step_s * 1e3) for point in law.points}
        rows.append((f"after {law.prompt} tokens", *(steps.get(level, "-") for level in levels)))
    return Block("chart", draw_chart("Time of a decode step", "requests at once", "ms", [*series, *dots]), tuple(rows))


def _write_markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {title}"]
    for block in blocks:
        if block.kind == "heading":
            parts.append(f"## {block.text}")
        elif block.kind == "note":
            parts.append(f"> {block.text}")
        elif block.rows:
            head, *rows = (tuple(cell.replace("|", "\\|") for cell in row) for row in block.rows)
            lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] * len(head))}|"]
            parts.append("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]))
        elif block.kind == "text":
            parts.append(block.text)
    return "\n\n".join(parts) + "\n"


def _write_html(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"<h1>{escape(title)}</h1>"]
    for block in blocks:
        if block.kind == "heading":
            parts.append(f"<h2>{escape(block.text)}</h2>")
        elif block.kind == "note":
            parts.append(f'<p class="note">{_inline(block.text)}</p>')
        elif block.kind in {"table", "differences", "facts"}:
            parts.append(_write_table(block))
        elif block.kind == "chart":
            earlier = parts.pop().removesuffix("</div>") if parts[-1].startswith(_CHARTS) else _CHARTS
            parts.append(f"{earlier}<figure>{block.text}{_write_table(block)}</figure></div>")
        else:
            parts.append(f"<p>{_inline(block.text)}</p>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _write_table(block: Block) -> str:
    """Return the rows of `block`; those of a chart are its points. Nothing when it has none."""
    if not block.rows:
        return ""
    head, *rows = block.rows
    cells = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{_inline(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f'<table class="{block.kind}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _inline(text: str) -> str:
    """Escape text; a whole text between back quotes is code, a verdict has its colour."""
    if text in {"faster", "slower"}:
        return f'<b class="{text}">{text}</b>'
    if len(text) > 1 and text.startswith("`") and text.endswith("`"):
        return f"<code>{escape(text[1:-1])}</code>"
    return escape(text)


def say_value(value: float) -> str:
    """Return a figure with four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits either way
