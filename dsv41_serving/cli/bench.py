"""`dsv41 bench`: run the protocol, compare, fit the step law, write a report. Verbs only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsv41_serving.cli.address import ADDRESS
from dsv41_serving.cli.output import refuse_unwritable
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.bench.protocol import Target
    from dsv41_serving.bench.report import Block
    from dsv41_serving.bench.result import Launch, ResultSet
    from dsv41_serving.bench.scenario import Scenario
    from dsv41_serving.check.access import Access
    from dsv41_serving.cli.context import Context
    from dsv41_serving.plan.model import Plan

_OUT = click.option("--out", type=click.Path(path_type=Path), required=True, help="File or directory to write.")
_ROUNDS = click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds kept; one more warms up."
)
_SCALE = click.option(
    "--scale",
    type=click.FloatRange(min=0.001, max=64),
    default=1.0,
    show_default=True,
    help="Lengths of prompts and answers times this; kept with the result.",
)
_URL = click.option("--url", type=ADDRESS, help="Measure this service of the plan instead of its router.")


@click.group()
def bench() -> None:
    """Measure under a fixed protocol, so that the numbers can be compared."""


@bench.command("list")
@click.pass_obj
def bench_list(context: Context) -> None:
    """Say what each scenario sends."""
    from dsv41_serving.bench.scenario import list_scenarios  # noqa: PLC0415

    for scenario in list_scenarios(context.load().spec.engine.context_length).values():
        click.echo(f"{scenario.name:<8} {scenario.says}")


@bench.command("run")
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@_OUT
@click.option("--label", default="", help="Name of the configuration in reports.")
@_ROUNDS
@_SCALE
@_URL
@click.pass_obj
def bench_run(  # noqa: PLR0917 - click passes every option
    context: Context, scenarios: tuple[str, ...], out: Path, label: str, rounds: int, scale: float, url: str | None
) -> None:
    """Measure SCENARIOs on what runs now, and write a result set."""
    from dsv41_serving.bench.scenario import choose_scenarios  # noqa: PLC0415

    refuse_unwritable(out)
    loads = choose_scenarios(scenarios, context.load().spec.engine.context_length, scale)
    result = _measure_running(context, loads, label=label, rounds=rounds, scale=scale, url=url)
    _store(result, out)


@bench.command("scaling")
@_OUT
@click.option("--prompt", "prompts", type=click.IntRange(min=16), multiple=True, help="Prompt lengths (default: two).")
@click.option("--answer", type=click.IntRange(min=16), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--longest", type=click.IntRange(min=1), default=64, show_default=True, help="Most requests at once.")
@_ROUNDS
@_URL
@click.pass_obj
def bench_scaling(  # noqa: PLR0917 - click passes every option
    context: Context, out: Path, prompts: tuple[int, ...], answer: int, longest: int, rounds: int, url: str | None
) -> None:
    """Fit step time = a + b x requests on what runs now, and say what it means."""
    from dsv41_serving.bench.scenario import expect_room  # noqa: PLC0415
    from dsv41_serving.bench.step_law import explain, list_levels, list_loads, read_laws  # noqa: PLC0415

    refuse_unwritable(out)
    spec = context.load().spec
    caps = [engine.max_running_requests for engine in spec.active_engines().values() if engine.role != "prefill"]
    chosen = sorted(set(prompts)) or [256, min(8_192, spec.engine.context_length // 2)]
    expect_room(chosen, answer, spec.engine.context_length)
    loads = list_loads(chosen, list_levels(longest, min(caps)), answer)
    result = _measure_running(context, loads, label="step law", rounds=rounds, scale=1.0, url=url)
    _store(result, out)
    for line in explain(read_laws(result)):
        click.echo(line)


@bench.command("compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--scenario", "scenarios", multiple=True, help="What to measure (default: single and c16).")
@click.option(
    "--launches", type=click.IntRange(min=2), default=4, show_default=True, help="Starts of each configuration."
)
@click.option("--floor", type=click.FloatRange(min=0, max=1), default=0.015, show_default=True, help="Noise floor.")
@_ROUNDS
@_SCALE
@click.option(
    "--direct",
    type=click.Choice(["a", "b"]),
    multiple=True,
    help="Measure this node file at its engine, not its router.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory for both result sets and the report; node files need it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_compare(  # noqa: PLR0917 - click passes every option
    a: Path,
    b: Path,
    scenarios: tuple[str, ...],
    launches: int,
    floor: float,
    direct: tuple[str, ...],
    rounds: int,
    scale: float,
    out: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Compare A with B: two result sets (.json), or two node files (.toml) that are launched in turn.

    Exit 1 when B is slower in a scenario; what node files measured is in --out after each launch.
    """
    from dsv41_serving.bench.compare import compare_sets, list_obstacles, summarise  # noqa: PLC0415
    from dsv41_serving.bench.report import describe_comparison  # noqa: PLC0415
    from dsv41_serving.bench.result import read_result  # noqa: PLC0415

    if out is not None:
        refuse_unwritable(out / "report.html")
    if {a.suffix, b.suffix} == {".toml"}:
        if out is None:
            raise InputError(
                "what is measured would be kept nowhere", where="--out", remedy="name a directory: --out compared"
            )
        first, second = _measure_in_turn(
            (a, b), scenarios or ("single", "c16"), launches, rounds=rounds, scale=scale, direct=direct, out=out
        )
    elif {a.suffix, b.suffix} == {".json"}:
        first, second = read_result(a), read_result(b)
    else:
        raise InputError(
            "are not two of a kind",
            where=f"{a} and {b}",
            remedy="name two result sets (.json) or two node files (.toml)",
        )
    rows, obstacles = compare_sets(first, second, floor=floor), list_obstacles(first, second)
    if not rows:
        raise InputError(
            f"cannot be compared: {'; '.join(obstacles) or 'no metric that both have'}",
            where=f"{a} and {b}",
            remedy="measure the same scenarios on both, acceptance alike",
        )
    if as_json:
        click.echo(json.dumps({"rows": [row.as_json() for row in rows], "obstacles": obstacles}))
    else:
        for line in (*obstacles, *summarise(rows)):
            click.echo(line)
    if out is not None:
        _store(first, out / "a.json")
        _store(second, out / "b.json")
        _write_pages(f"{first.label} against {second.label}", describe_comparison(first, second, floor), out)
    if all(row.judgement == "too few to tell" for row in rows):
        raise InputError(
            "one round on each side tells nothing",
            where=f"{a} and {b}",
            remedy="measure --rounds 3 or more, or several launches",
        )
    sys.exit(EXIT_CHECK_FAILED if any(row.headline and row.judgement == "slower" for row in rows) else EXIT_OK)


@bench.command("noise")
@click.argument("result", type=click.Path(path_type=Path))
@click.option(
    "--slower", type=click.FloatRange(min=0.001, max=1), default=0.05, show_default=True, help="Planted share."
)
@click.option("--floor", type=click.FloatRange(min=0, max=1), default=0.015, show_default=True, help="Noise floor.")
@click.option("--trials", type=click.IntRange(min=20), default=2000, show_default=True, help="Comparisons to draw.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_noise(result: Path, slower: float, floor: float, trials: int, as_json: bool) -> None:  # noqa: FBT001
    """Say from the launches of one configuration how often a comparison is right, and how many launches it takes."""
    from dsv41_serving.bench.noise import explain, measure_noise  # noqa: PLC0415
    from dsv41_serving.bench.result import read_result  # noqa: PLC0415

    found = measure_noise(read_result(result), slower=slower, floor=floor, trials=trials)
    if as_json:
        click.echo(json.dumps([each.as_json() for each in found]))
        return
    for each in found:
        for line in explain(each, slower):
            click.echo(line)


@bench.command("handoff")
@_OUT
@click.option("--prompt", "prompts", type=click.IntRange(min=1), multiple=True, help="Prompt lengths (default: three).")
@_ROUNDS
@click.pass_obj
def bench_handoff(context: Context, out: Path, prompts: tuple[int, ...], rounds: int) -> None:
    """Show where the time of a KV hand-off goes, stage by stage, on what runs now."""
    from dsv41_serving.bench.handoff import ANSWER_TOKENS, as_json, describe_lengths, measure_handoffs  # noqa: PLC0415
    from dsv41_serving.bench.scenario import ROOM, expect_room  # noqa: PLC0415
    from dsv41_serving.bench.tokenizer import load_words  # noqa: PLC0415
    from dsv41_serving.check.access import find_access, open_calls  # noqa: PLC0415

    refuse_unwritable(out)
    plan, _ = context.plan()
    spec = context.load().spec
    longest = spec.engine.context_length - ANSWER_TOKENS - ROOM
    chosen = sorted(set(prompts)) or [min(length, longest) for length in (128, 1_024, longest)]
    expect_room(chosen, ANSWER_TOKENS, spec.engine.context_length)
    access = find_access(plan)
    _expect_running(access)
    with open_calls(access) as client:
        words = load_words(plan.model.path)
        lengths = measure_handoffs(plan, words, chosen, rounds=rounds, client=client, say=_say)
    _store_handoff(context, out, {"lengths": as_json(lengths)})
    for line in describe_lengths(lengths):
        click.echo(line)


@bench.command("soak")
@_OUT
@click.option("--handoffs", type=click.IntRange(min=1), default=10_000, show_default=True, help="Requests to send.")
@click.option(
    "--restarts", type=click.IntRange(min=0), default=2, show_default=True, help="Times that an engine is killed."
)
@click.option(
    "--longest", type=click.IntRange(min=1), default=1_200, show_default=True, help="Longest prompt, in tokens."
)
@click.pass_obj
def bench_soak(context: Context, out: Path, handoffs: int, restarts: int, longest: int) -> None:
    """Send many requests, leave some, kill engines in between, and count what was corrupted or left behind: exit 1 if anything."""
    import asyncio  # noqa: PLC0415
    from dataclasses import asdict  # noqa: PLC0415

    from dsv41_serving.bench.soak import Outcome, describe, run_soak  # noqa: PLC0415
    from dsv41_serving.bench.tokenizer import load_words  # noqa: PLC0415
    from dsv41_serving.check.access import find_access, open_client  # noqa: PLC0415

    refuse_unwritable(out)
    plan, _ = context.plan()
    spec = context.load().spec
    access = find_access(plan)
    _expect_running(access)

    async def run() -> Outcome:
        async with open_client(access, 180.0) as client:
            return await run_soak(
                plan,
                spec.node.state_dir,
                load_words(plan.model.path),
                handoffs=handoffs,
                restarts=restarts,
                longest=longest,
                client=client,
                say=_say,
            )

    outcome = asyncio.run(run())
    _store_handoff(context, out, {"outcome": asdict(outcome), "sound": outcome.sound})
    for line in describe(outcome):
        click.echo(line)
    sys.exit(EXIT_OK if outcome.sound else EXIT_CHECK_FAILED)


def _expect_running(access: Access) -> None:
    """Raise InputError when nothing answers at what is to be measured: before anything is read that a start makes."""
    import asyncio  # noqa: PLC0415

    from dsv41_serving.check.access import open_client  # noqa: PLC0415
    from dsv41_serving.contract.deployment import expect_answer  # noqa: PLC0415

    async def ask() -> None:
        async with open_client(access, 10.0) as client:
            await expect_answer(client, access.origin)

    asyncio.run(ask())


def _store_handoff(context: Context, out: Path, found: dict[str, Any]) -> None:
    """Write a result of the hand-off with where it comes from."""
    from dsv41_serving.bench.provenance import describe_run  # noqa: PLC0415
    from dsv41_serving.bench.result import write_whole  # noqa: PLC0415

    spec = context.load().spec
    plan, _ = context.plan()
    env = {name: value for engine in plan.engines for name, value in engine.env.items() if name.startswith("UCX_")}
    result = {
        **describe_run(" ".join(["dsv41", *sys.argv[1:]])),
        "handoff": spec.handoff.model_dump(),
        "env": env,
        "engine_args": dict(spec.engine.args),
        **found,
    }
    write_whole(out, json.dumps(result, indent=1) + "\n")
    _say(f"wrote {out}")


@bench.command("report")
@click.argument("result", type=click.Path(path_type=Path))
@_OUT
def bench_report(result: Path, out: Path) -> None:
    """Write a result set as one HTML page and as Markdown into a directory."""
    from dsv41_serving.bench.report import describe_set  # noqa: PLC0415
    from dsv41_serving.bench.result import read_result  # noqa: PLC0415

    found = read_result(result)
    _write_pages(found.label or result.stem, describe_set(found), out)


def _measure_running(
    context: Context, loads: Sequence[Scenario], *, label: str, rounds: int, scale: float, url: str | None
) -> ResultSet:
    from dsv41_serving.bench.protocol import measure_launch  # noqa: PLC0415
    from dsv41_serving.bench.tokenizer import load_words  # noqa: PLC0415

    plan, _ = context.plan()
    target = _find_target(context, plan, url)
    _expect_running(target.access)
    launch = measure_launch(loads, target, load_words(target.tokenizer), rounds=rounds, say=_say)
    command = " ".join(["dsv41", *sys.argv[1:]])
    return _collect(
        plan, target, [launch], label=label or plan.shape, scale=scale, command=command, overrides=context.overrides
    )


def _measure_in_turn(
    files: tuple[Path, Path],
    names: Sequence[str],
    launches: int,
    *,
    rounds: int,
    scale: float,
    direct: Sequence[str],
    out: Path,
) -> tuple[ResultSet, ResultSet]:
    """Measure both node files, and store what there is of each after every launch of it."""
    from dsv41_serving.bench.alternate import launch_in_turn  # noqa: PLC0415
    from dsv41_serving.bench.protocol import find_engine_url, find_simulated, measure_launch  # noqa: PLC0415
    from dsv41_serving.bench.scenario import choose_scenarios  # noqa: PLC0415
    from dsv41_serving.bench.tokenizer import load_words  # noqa: PLC0415
    from dsv41_serving.cli.context import Context  # noqa: PLC0415

    contexts = [Context(file, None, (), Path("/")) for file in files]
    # One context length for both sides, or the prompts would differ.
    context_length = min(each.load().spec.engine.context_length for each in contexts)
    loads = choose_scenarios(names, context_length, scale)
    plans = [each.plan()[0] for each in contexts]
    simulated = [find_simulated(plan) or "real" for plan in plans]
    if len(set(simulated)) > 1:
        raise InputError(
            f"acceptance is simulated differently ({' against '.join(simulated)})",
            where=f"{files[0]} and {files[1]}",
            remedy="make SGLANG_SIMULATE_ACC_LEN in engine.env the same",
        )
    targets = [
        _find_target(each, plan, find_engine_url(plan) if side in direct else None)
        for side, each, plan in zip("ab", contexts, plans, strict=True)
    ]

    def measure(index: int) -> Launch:
        target = targets[index]
        return measure_launch(loads, target, load_words(target.tokenizer), rounds=rounds, say=_say)

    command = " ".join(["dsv41", *sys.argv[1:]])

    def collect(index: int, launched: Sequence[Launch]) -> ResultSet:
        side = "ab"[index]
        label = _name_side(files[index], side in direct)
        return _collect(plans[index], targets[index], launched, label=label, scale=scale, command=command)

    def keep(index: int, launched: Sequence[Launch]) -> None:
        _store(collect(index, launched), out / f"{'ab'[index]}.json")

    first, second = launch_in_turn([each.arguments() for each in contexts], launches, measure, keep, _say)
    return collect(0, first), collect(1, second)


def _name_side(file: Path, direct: bool) -> str:  # noqa: FBT001
    return f"{file.stem}, engine" if direct else file.stem


def _find_target(context: Context, plan: Plan, url: str | None) -> Target:
    from dsv41_serving.bench.protocol import choose_target, find_floor  # noqa: PLC0415
    from dsv41_serving.capacity import read_shape, request  # noqa: PLC0415
    from dsv41_serving.check.access import find_access  # noqa: PLC0415

    spec = context.load().spec
    shape = read_shape(request.find_checkpoint(spec), spec.model.name)
    return choose_target(plan, find_access(plan, url), find_floor(spec, shape))


def _collect(
    plan: Plan,
    target: Target,
    launches: Sequence[Launch],
    *,
    label: str,
    scale: float,
    command: str,
    overrides: Sequence[str] = (),
) -> ResultSet:
    from dsv41_serving.bench.protocol import describe_deployment  # noqa: PLC0415
    from dsv41_serving.bench.provenance import describe_run  # noqa: PLC0415
    from dsv41_serving.bench.result import ResultSet  # noqa: PLC0415

    return ResultSet(
        label=label,
        provenance=describe_run(command),
        deployment=describe_deployment(plan, target, overrides, scale),
        launches=tuple(launches),
    )


def _store(result: ResultSet, path: Path) -> None:
    from dsv41_serving.bench.result import write_result  # noqa: PLC0415

    write_result(result, path)
    _say(f"wrote {path}")


def _write_pages(title: str, blocks: Sequence[Block], directory: Path) -> None:
    from dsv41_serving.bench.report import write_pages  # noqa: PLC0415

    markdown, html = write_pages(title, blocks)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.md", markdown), ("report.html", html)):
            (directory / name).write_text(text, encoding="utf-8")
            _say(f"wrote {directory / name}")
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", where=str(directory), remedy="choose another --out"
        ) from None


def _say(line: str) -> None:
    click.echo(line, err=True)
