"""What clients get, proven and watched."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.address import ADDRESS
from dsv41_serving.cli.output import print_json, refuse_unwritable
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


@click.group()
def contract() -> None:
    """Prove and watch what clients get: names, thinking, sampling, tools, errors."""


@contract.command("check")
@click.argument("clauses", nargs=-1, metavar="[CLAUSE]...")
@click.option(
    "--url",
    type=ADDRESS,
    help="Judge this address instead of the router of the plan: an engine, or any other deployment.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="File with the API key (default, for the router of the plan: router.api_key_file).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit document to this file as well.")
@click.option("--list", "list_only", is_flag=True, help="Only say what each clause promises.")
@click.pass_obj
def contract_check(  # noqa: PLR0917 - click passes every option
    context: Context,
    clauses: tuple[str, ...],
    url: str | None,
    api_key_file: Path | None,
    as_json: bool,  # noqa: FBT001
    junit: Path | None,
    list_only: bool,  # noqa: FBT001
) -> None:
    """Run the contract suite, or only CLAUSEs of it; exit 1 on any miss."""
    from dsv41_serving.check.access import find_access  # noqa: PLC0415
    from dsv41_serving.contract import report  # noqa: PLC0415
    from dsv41_serving.contract.check import check_contract  # noqa: PLC0415
    from dsv41_serving.contract.suite import all_kept, choose  # noqa: PLC0415

    chosen = choose(clauses)
    if list_only:
        for clause in chosen:
            click.echo(f"{clause.name:<{report.NAME_WIDTH}} {clause.statement}")
        return
    if junit is not None:
        refuse_unwritable(junit)
    made = context.plan_if_possible() if url else context.plan()[0]
    done = asyncio.run(
        check_contract(
            made.contract if made is not None else context.load().spec.contract,
            chosen,
            plan=made,
            url=url,
            access=find_access(made, url, api_key_file),
            on_result=lambda result: None if as_json else click.echo(report.as_line(result)),
        )
    )
    if junit is not None:
        junit.write_text(report.as_junit(done), encoding="utf-8")
    if as_json:
        print_json(report.as_json(done))
    else:
        click.echo(report.summary_line(done))
    sys.exit(EXIT_OK if all_kept(done.results) else EXIT_CHECK_FAILED)


@contract.command("goldens")
@click.option("--write", is_flag=True, help="Write what the encoder makes now into the files.")
def contract_goldens(write: bool) -> None:  # noqa: FBT001
    """Compare the golden encodings with the V4.1 encoder; exit 1 where they differ."""
    from dsv41_serving.contract import goldens  # noqa: PLC0415

    cases, encoder = goldens.read_goldens(), goldens.embedded_encoder()
    if write:
        changed = goldens.write_goldens(cases, encoder, goldens.directory())
        for path in changed:
            click.echo(f"wrote {path}")
        click.echo(f"{len(changed)} of {len(cases)} files changed")
        return
    differing = [lines for lines in (goldens.compare_with_encoder(case, encoder) for case in cases) if lines]
    for lines in differing:
        click.echo("\n".join(lines))
    click.echo(f"{len(cases) - len(differing)} of {len(cases)} conversations are encoded as in {goldens.directory()}")
    sys.exit(EXIT_CHECK_FAILED if differing else EXIT_OK)


@contract.command("watch")
@click.option("--once", is_flag=True, help="Look once; exit 1 on a miss or a drift.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=10), default=600.0, show_default=True, help="Seconds."
)
@click.option("--accept", is_flag=True, help="Take what is served now as what should be, for example after an upgrade.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per round.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with the API key.")
@click.pass_obj
def contract_watch(  # noqa: PLR0917 - click passes every option
    context: Context,
    once: bool,  # noqa: FBT001
    interval_s: float,
    accept: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    api_key_file: Path | None,
) -> None:
    """Repeat a cheap part of the suite and say what drifted from what was served before."""
    from dsv41_serving.check.access import find_access  # noqa: PLC0415
    from dsv41_serving.contract.watch import watch_contract  # noqa: PLC0415

    made, _ = context.plan()
    last = asyncio.run(
        watch_contract(
            made,
            access=find_access(made, key_file=api_key_file),
            interval_s=interval_s,
            once=once,
            accept=accept,
            on_round=lambda done: click.echo(
                json.dumps(done.as_json(), ensure_ascii=False) if as_json else "\n".join(done.as_lines())
            ),
        )
    )
    sys.exit(EXIT_OK if last.kept else EXIT_CHECK_FAILED)
