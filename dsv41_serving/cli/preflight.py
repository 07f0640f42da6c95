"""What must be right before a start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.output import out, print_json
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--hashes", is_flag=True, help="Also compare the digest of every model file; reads all of them.")
@click.option(
    "--clean", is_flag=True, help="First end and remove what earlier runs left and what is proven to be ours."
)
@click.option("--list", "list_only", is_flag=True, help="Only say what each check asks, and why.")
@click.pass_obj
def preflight(context: Context, as_json: bool, hashes: bool, clean: bool, list_only: bool) -> None:  # noqa: FBT001
    """Ask what must be right before a start: one line for each check; exit 1 when one fails."""
    from dsv41_serving.preflight.gather import gather_scene  # noqa: PLC0415
    from dsv41_serving.preflight.report import list_checks  # noqa: PLC0415
    from dsv41_serving.preflight.suite import CHECKS, run_checks  # noqa: PLC0415
    from dsv41_serving.preflight.traces import clean_up  # noqa: PLC0415

    if list_only:
        click.echo("\n".join(list_checks(CHECKS)))
        return
    loaded = context.load()
    done = clean_up(loaded.spec.node.state_dir) if clean else []
    scene = gather_scene(
        loaded,
        context.facts(),
        context.root,
        python=sys.executable,
        hashes=hashes,
        arguments=context.arguments(),
    )
    report = run_checks(scene)
    if as_json:
        print_json({**report.as_json(), "cleaned": done})
    else:
        for line in done:
            click.echo(f"cleaned {line}")
        for text in report.as_lines():
            out.print(text, soft_wrap=True)
    sys.exit(EXIT_OK if report.passed else EXIT_CHECK_FAILED)
