"""The served model's results as Markdown, for kernels/RESULTS.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsv41_kernels.serve import verdict

if TYPE_CHECKING:
    import pathlib

_HEAD = """## In the engine

Models of `dsv41_kernels.serve.model` (every kind of layer, real widths, synthetic weights, FP8 experts in SGLang's Triton runner)
served by SGLang 0.5.23 with CUDA graphs.
"""
_TIMES = """Decode: time per token of a running stream. Prefill: time to the first token of a fresh prompt. Medians in ms over the rounds (least to
largest); "gain" is the first variant's time over this one's.
"""
_ANSWERS = """Greedy answers against the first variant's. A difference names its position, and by how much (nats) the first variant preferred its token:
what rounding alone can flip, a control variant shows, and the verdict compares with it. Distance: of the log-probabilities (nats) that both
give to the same tokens in one prefill.
"""
_LIMIT = """What can be gained at most: the time of the first variant's kernels that another launches less often or no more, as if nothing took
their place. While no kernel runs, the GPU waits for the next launch within the captured graph, or for the host, which prepares the next step;
a step that waits for the host gets no shorter by less work for the GPU.
"""
_SHADOW = (
    "Compared in shadow with the engine's path; an op's hooks say what its largest error is and what it may be (of candidate_scores since "
    "commit 8873096 another measure; before it the share of positions that differ, at most 0.05):"
)
_KERNELS_SHOWN = 12


def write_table(directory: pathlib.Path) -> list[str]:
    """Lines for every `*.jsonl` of `directory`; none when there is no result."""
    lines: list[str] = []
    for path in sorted(directory.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if records:
            lines += [f"### {path.stem}", "", *_setting(records)]
            for kinds, describe in (
                (("answers",), _answers),
                (("shadow",), _shadow),
                (("decode", "prefill"), _times),
                (("profile",), _profiles),
                (("decode", "profile"), _limits),
            ):
                found = [record for record in records if record["kind"] in kinds]
                described = describe(found) if found else []
                lines += ["", *described] if described else []
            lines.append("")
    return [_HEAD, *lines] if lines else []


def _setting(records: list[dict[str, Any]]) -> list[str]:
    some = records[0]
    versions = ", ".join(f"{name} {some[name]}" for name in ("driver", "torch", "triton", "sglang"))
    variants = dict.fromkeys(
        (record["variant"], record["kernels"], record["gpus"], record.get("gains", "")) for record in records
    )
    return [
        f"- {some['gpu']}, {some.get('layers', 6)} layers, {some['heads']} heads, {versions}, {some['date']}, commit {some['commit']}",
        *(f"- `{command}`" for command in dict.fromkeys(record["command"] for record in records)),
        *(
            f"- {name}: `DSV41_KERNELS={text}`{_shape(gpus)}{f', weights with {gains}' if gains else ''}"
            for name, text, gpus, gains in variants
        ),
        *([f"- meanwhile: {some['note']}"] if "note" in some else []),
    ]


def _shape(gpus: str) -> str:
    if "/" in gpus:
        return ", prefill and decode on a GPU each"
    return f", {1 + gpus.count('+')} ranks" if "+" in gpus else ""


def _answers(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        _ANSWERS,
        "| variant | equal answers | tokens | first differences | distance: median, p90, largest | verdict |",
        "|---|---|---|---|---|---|",
    ]
    control = verdict.control_of(records)
    for record in records:
        differences = ", ".join(f"{each['position']} ({each['margin_nats']})" for each in record["differences"])
        distance = record.get("prefill_logprob_difference_nats", {})
        cells = [
            record["variant"],
            f"{record['equal']} of {record['answers']}",
            str(record["tokens"]),
            differences or "none",
            ", ".join(str(value) for value in distance.values()) or "not asked",
            verdict.judge(record, control),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _shadow(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        _SHADOW,
        "",
        "| variant | op | calls compared | more than allowed | largest error |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        found: dict[str, dict[str, float]] = {}
        for sample, value in record["samples"].items():
            name, _, labels = sample.removeprefix("dsv41_kernel_shadow_").partition("{")
            if not name.endswith("_created"):
                found.setdefault(labels.split('"')[1], {})[name] = value
        for op, values in sorted(found.items()):
            cells = [
                record["variant"],
                op,
                f"{values.get('checks_total', 0):.0f}",
                f"{values.get('exceeded_total', 0):.0f}",
                f"{values['max_relative_error']:.2g}" if "max_relative_error" in values else "none",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _times(records: list[dict[str, Any]]) -> list[str]:
    variants = list(dict.fromkeys(record["variant"] for record in records))
    first, others = variants[0], variants[1:]
    lines = [_TIMES, "| | tokens | batch | " + " | ".join([first, *(f"{name} | gain" for name in others)]) + " |"]
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
    return lines


def _profiles(records: list[dict[str, Any]]) -> list[str]:
    lines = []
    for record in records:
        step = f"{record['us_per_step']} us in {record['launches_per_step']} kernels"
        if "busy_us_per_step" in record:
            step += f", {record['busy_us_per_step']} us with overlaps counted once"
        lines += [
            f"A decode step of {record['variant']} after {record['context']} tokens: {step}.",
            "",
            "| kernel | us a step | alone | launches | share |",
            "|---|---|---|---|---|",
        ]
        for name, time, launches, *alone in record["largest"][:_KERNELS_SHOWN]:
            cells = [f"`{name}`", str(time), str(alone[0]) if alone else "not recorded", str(launches)]
            lines.append("| " + " | ".join([*cells, f"{time / record['us_per_step']:.0%}"]) + " |")
        lines.append("")
    return lines[:-1]


def replaced(first: dict[str, Any], other: dict[str, Any]) -> float:
    """Microseconds a step of `first`'s kernels (profile records) that `other` launches less often or not at all, at most.

    What is missing in the lists, which end at the largest kernels, counts as replaced. Where a record has the time given to a kernel alone,
    that is taken: what ran beside something else shortens no step.
    """
    kept = {entry[0]: entry[2] for entry in other["largest"]}
    busy = first.get("busy_us_per_step")
    total = busy if busy is not None else first["us_per_step"]
    for name, duration, launches, *alone in first["largest"]:
        time = alone[0] if busy is not None else duration
        total -= time * min(1.0, kept.get(name, 0) / launches)
    return float(total)


def _limits(records: list[dict[str, Any]]) -> list[str]:
    profiles = [record for record in records if record["kind"] == "profile"]
    steps = {
        (record["variant"], record["context"]): 1000 * record["median_ms"]
        for record in records
        if record["kind"] == "decode" and record["batch"] == 1
    }
    lines = []
    for record in profiles:
        step, busy = steps.get((record["variant"], record["context"])), record.get("busy_us_per_step")
        if step and busy:
            lines.append(
                f"- {record['variant']}: a step of {step:.0f} us after {record['context']} tokens has work for the GPU in {busy:.0f} us; "
                f"in the other {max(0.0, step - busy):.0f} us no kernel runs"
            )
        first = profiles[0]
        step = steps.get((first["variant"], first["context"]))
        if record is not first and step and record["context"] == first["context"]:
            most = replaced(first, record)
            lines.append(
                f"- {record['variant']} replaces at most {most:.0f} us of {first['variant']}'s step of {step:.0f} us ({most / step:.0%}): "
                f"the step gains at most {step / (step - most):.2f}"
            )
    return [_LIMIT, *lines] if lines else []


def _time(record: dict[str, Any]) -> str:
    return f"{record['median_ms']:.2f} ({record['lowest_ms']:.2f}..{record['highest_ms']:.2f})"
