"""The verbs about dashboards: check, push."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.address import ADDRESS
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


@click.group()
def dashboards() -> None:
    """The Grafana boards: which panels have data, and how to bring them to a Grafana."""


@dashboards.command("check")
@click.option("--prometheus", "url", type=ADDRESS, help="Address of the Prometheus to ask (default: this node's).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every query with its answer and time.")
@click.pass_obj
def dashboards_check(context: Context, url: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Ask Prometheus every query of every panel; exit 1 when one is refused or unexpectedly has no answer."""
    from dsv41_serving.dashboards import BOARDS  # noqa: PLC0415
    from dsv41_serving.dashboards.probe import ask_panels  # noqa: PLC0415
    from dsv41_serving.dashboards.silent import REASONS, SILENT  # noqa: PLC0415

    monitoring = context.load().spec.monitoring
    answers = ask_panels(
        BOARDS, url or f"http://127.0.0.1:{monitoring.prometheus_port}", scrape_s=monitoring.scrape_interval_s
    )
    dead = [answer for answer in answers if answer.problem or not (answer.alive or answer.where in SILENT)]
    if as_json:
        click.echo(json.dumps([asdict(answer) for answer in answers], indent=2, ensure_ascii=False))
    else:
        for answer in answers:
            if answer in dead:
                click.echo(f"dead    {' / '.join(answer.where)}: {answer.problem or 'no data'}: {answer.expr}")
            elif not answer.alive:
                click.echo(f"silent  {' / '.join(answer.where)}: {REASONS[SILENT[answer.where]]}")
        alive = sum(answer.alive for answer in answers)
        click.echo(f"{alive} of {len(answers)} queries have data, {len(dead)} are dead")
    sys.exit(EXIT_CHECK_FAILED if dead else EXIT_OK)


@dashboards.command("push")
@click.option(
    "--grafana", "url", type=ADDRESS, required=True, help="Address of the Grafana, for example https://grafana.example."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the token of a service account that may edit the folder.",
)
@click.option("--dry-run", is_flag=True, help="Only show the differences.")
@click.pass_obj
def dashboards_push(context: Context, url: str, token_file: Path | None, dry_run: bool) -> None:  # noqa: FBT001
    """Make a Grafana elsewhere show this release's boards; change only what differs."""
    from dsv41_serving.dashboards.push import push_boards  # noqa: PLC0415

    changes = push_boards(
        url,
        token_file.read_text(encoding="utf-8").strip() if token_file else "",
        runbook_url=context.load().spec.monitoring.runbook_url,
        message=f"dsv41-serving {version('dsv41-serving')}",
        dry_run=dry_run,
    )
    for change in changes:
        if dry_run and change.diff:
            click.echo(change.diff)
        click.echo(f"{'would be ' if dry_run and change.diff else ''}{change.what}: {change.name}")
