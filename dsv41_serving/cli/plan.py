"""From the machine to the files of the plan: facts, plan, render, diff."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.output import out
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK
from dsv41_serving.facts import describe
from dsv41_serving.plan import Installation
from dsv41_serving.plan.install import diff_files, refuse_home, write_files
from dsv41_serving.plan.table import command_text, describe_plan
from dsv41_serving.release.directory import running_release

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


def _installation(python: str | None, release_name: str | None) -> Installation:
    return Installation(
        python=python or sys.executable, release=release_name or running_release() or version("dsv41-serving")
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def facts(context: Context, as_json: bool) -> None:  # noqa: FBT001
    """Say what this machine is: GPUs, NUMA nodes, memory, limits, kernel settings, ports."""
    found = context.facts()
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        out.print(describe(found))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--commands", is_flag=True, help="Show every command and environment.")
@click.pass_obj
def plan(context: Context, as_json: bool, commands: bool) -> None:  # noqa: FBT001
    """Show what would run where, and with which command."""
    made, _ = context.plan()
    if as_json:
        click.echo(made.model_dump_json(indent=2))
        return
    out.print(describe_plan(made))
    if commands:
        for service in made.services:
            click.echo(f"\n{command_text(service)}")


@click.command()
@click.option(
    "--root", "target", type=click.Path(path_type=Path), required=True, help="Write below this directory; / installs."
)
@click.option("--python", help="Interpreter of the locked environment on the target machine.")
@click.option("--release", "release_name", help="Name of the release, for the journal.")
@click.pass_obj
def render(context: Context, target: Path, python: str | None, release_name: str | None) -> None:
    """Write the files of the plan: node file, plan, units, monitoring; remove what an earlier plan had and this has not."""
    made, _ = context.plan(_installation(python, release_name))
    refuse_home(made)
    changed = write_files(made, target)
    for path in changed:
        click.echo(f"wrote {path}")
    click.echo(f"{len(changed)} of {len(made.files)} files changed")


@click.command()
@click.option(
    "--root",
    "target",
    type=click.Path(path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Compare with what lies below.",
)
@click.option("--python", help="Interpreter of the locked environment on the target machine.")
@click.option("--release", "release_name", help="Name of the release, for the journal.")
@click.pass_obj
def diff(context: Context, target: Path, python: str | None, release_name: str | None) -> None:
    """Compare the plan with what is installed; exit 1 when they differ."""
    made, _ = context.plan(_installation(python, release_name))
    text = diff_files(made, target)
    click.echo(text, nl=False)
    sys.exit(EXIT_CHECK_FAILED if text else EXIT_OK)
