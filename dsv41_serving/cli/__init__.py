"""The command line: verbs, no logic. Exit codes: 0 fine, 1 a check failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from dsv41_serving.cli.bench import bench
from dsv41_serving.cli.capacity import capacity
from dsv41_serving.cli.config import config
from dsv41_serving.cli.context import Context
from dsv41_serving.cli.contract import contract
from dsv41_serving.cli.dashboards import dashboards
from dsv41_serving.cli.observe import canary, explain, exporter, metrics, top
from dsv41_serving.cli.output import err
from dsv41_serving.cli.plan import diff, facts, plan, render
from dsv41_serving.cli.preflight import preflight
from dsv41_serving.cli.release import bundle, release
from dsv41_serving.cli.run import down, drain, gate, incident, model, restart, run, status, up
from dsv41_serving.cli.transport import transport
from dsv41_serving.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, Dsv41Error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--node",
    "node_file",
    type=click.Path(path_type=Path),
    help="Node file (default: ./node.toml, then /etc/dsv41/node.toml).",
)
@click.option("--profile", help="Profile to use when there is no node file.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one value, for example router.port=30001."
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    show_default=True,
    help="Read the machine below this directory.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    help="Use this stored plan (`dsv41 render` writes /etc/dsv41/plan.json) instead of making one.",
)
@click.version_option(package_name="dsv41-serving", prog_name="dsv41")
@click.pass_context
def cli(  # noqa: PLR0917 - click passes every option
    ctx: click.Context,
    node_file: Path | None,
    profile: str | None,
    overrides: tuple[str, ...],
    root: Path,
    plan_file: Path | None,
) -> None:
    """Serve DeepSeek-V4.1-Flash with SGLang, split into a prefill and a decode group."""
    ctx.obj = Context(node_file, profile, overrides, root, plan_file)


for verb in (
    config,
    facts,
    plan,
    render,
    diff,
    capacity,
    transport,
    preflight,
    run,
    up,
    down,
    status,
    drain,
    restart,
    incident,
    gate,
    model,
    contract,
    release,
    bundle,
    bench,
    exporter,
    canary,
    explain,
    top,
    metrics,
    dashboards,
):
    cli.add_command(verb)


def main() -> NoReturn:
    """Run the command line; every expected error is one line on stderr and a documented exit code."""
    try:
        cli(standalone_mode=False)
    except Dsv41Error as error:
        for line in str(error).splitlines():
            err.print(f"dsv41: {line}", markup=False, highlight=False)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        message = error.format_message()
        if "\n" in message:
            error.show()  # no command at all: the message is the help
        else:
            command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "dsv41"
            err.print(f"dsv41: {message} See `{command} --help`.", markup=False, highlight=False)
        sys.exit(error.exit_code)
    except OSError as error:
        # A path that somebody named and this user cannot use; without a path it is a defect, and its traceback is wanted.
        if error.filename is None:
            raise
        err.print(
            f"dsv41: {error.filename}: cannot be used ({error.strerror}); name a place this user may use",
            markup=False,
            highlight=False,
        )
        sys.exit(EXIT_BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        err.print("dsv41: interrupted", markup=False)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_OK)
