"""The committed results as a section of the README of this room, so that no number there is written by hand.

python -m dsv41_serving.bench.published dsv41_serving/bench/README.md
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41_serving.bench.compare import compare_sets, summarise
from dsv41_serving.bench.noise import measure_noise
from dsv41_serving.bench.report import say_value
from dsv41_serving.bench.result import METRICS, TITLES, read_result
from dsv41_serving.bench.step_law import explain, read_laws
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from dsv41_serving.bench.result import ResultSet

MARKER, END_MARKER = "<!-- results: deploy/results/bench -->", "<!-- /results -->"
SLOWER = 0.05
_ENOUGH = 4


def main() -> None:
    """Write the section of the file that is named."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.bench.published", description=main.__doc__)
    parser.add_argument("readme", type=Path)
    path = parser.parse_args().readme
    path.write_text(insert_section(path.read_text(encoding="utf-8")), encoding="utf-8")


def insert_section(text: str) -> str:
    """Return `text` with the section between its markers."""
    head, _, rest = text.partition(MARKER)
    _, _, tail = rest.partition(END_MARKER)
    return f"{head}{MARKER}\n{write_section(data_dir('deploy') / 'results' / 'bench')}\n{END_MARKER}{tail}"


def write_section(directory: Path) -> str:
    """Return what the results in `directory` say: sets, step laws, comparisons (directories of two sets), the planted series."""
    parts: list[str] = []
    for path in sorted(directory.glob("*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        link = f"[`{path.name}`](../../deploy/results/bench/{path.name})"
        if "planted" in values:
            parts.append(_describe_series(link, values))
        else:
            parts.append(_describe_set(link, read_result(path)))
    parts += [
        _describe_comparison(side.parent, read_result(side), read_result(side.with_name("b.json")))
        for side in sorted(directory.glob("*/a.json"))
    ]
    return "\n\n".join(parts)


def _describe_set(link: str, result: ResultSet) -> str:
    lines = [
        f"{link}: {_say_origin(result.provenance)}; {result.deployment['shape']}, through the {result.deployment['through']}."
    ]
    ordinary = [name for name in result.scenarios if not name.startswith("step-")]
    if ordinary:
        lines += [
            "",
            f"| scenario, lengths x {result.deployment['scale']} | {' | '.join(TITLES[name] for name in METRICS)} |",
        ]
        lines.append("|---" * (1 + len(METRICS)) + "|")
        for name in ordinary:
            runs = [run.metrics() for run in result.runs_of(name)]
            cells = [
                say_value(statistics.median(run[metric] for run in runs)) if all(metric in run for run in runs) else "-"
                for metric in METRICS
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    if laws := read_laws(result):
        lines += ["", *(f"- {line}" for line in explain(laws))]
    return "\n".join(lines)


def _describe_comparison(directory: Path, a: ResultSet, b: ResultSet) -> str:
    where = f"../../deploy/results/bench/{directory.name}"
    head = f"[`{directory.name}`]({where}/report.md): A is {a.label}, B is {b.label}; {_say_origin(a.provenance)}."
    lines = [head, "", *(f"- {line}" for line in summarise(compare_sets(a, b)))]
    if len(a.launches) >= _ENOUGH:
        for noise in measure_noise(a, slower=SLOWER):
            needed = f"{noise.needed} launches a side" if noise.needed else "more launches than 32 a side"
            lines.append(
                f"- {noise.scenario}: {noise.metric} of A differs by {noise.spread:.1%} from launch to launch; "
                f"{needed} find a slow-down of {SLOWER:.0%} in 19 of 20"
            )
    return "\n".join(lines)


def _describe_series(link: str, values: dict[str, Any]) -> str:
    figures = {row["name"]: row["value"] for row in values["figures"]}
    count = figures["comparisons of each kind"]
    drawn = values["drawn"]
    rates = [rate for series in values["rounds"] for rounds in series.values() for rate in rounds]
    enough = f"{drawn['needed']} rounds a side" if drawn["needed"] else f"more rounds than {drawn['most']} a side"
    return (
        f"{link}: {_say_origin(values)}. {count} comparisons of identical paths: {figures['identical called no difference']} "
        f"times no difference. {count} with a slow-down of {values['planted']:.0%} planted: found "
        f"{figures['planted slow-down found']} times. Rounds ran at {min(rates):.1f} to {max(rates):.1f} tok/s; those of one path differed by {figures['median spread of rounds']:.1%}, so that a "
        f"comparison could tell {figures['median noise of a comparison']:.1%}. Drawn {drawn['trials']:,} times from this noise, "
        f"{enough} find it in 19 of 20."
    )


def _say_origin(made: dict[str, Any]) -> str:
    machine = made["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']}, SGLang {made['versions']['sglang']}, {made['date']}"


if __name__ == "__main__":
    main()
