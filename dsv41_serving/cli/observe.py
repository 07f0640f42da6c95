"""The verbs that watch a node: exporter, canary, explain, top, metrics."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.address import ADDRESS
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from dsv41_serving.canary.result import CanaryRun
    from dsv41_serving.cli.context import Context


@click.command()
@click.pass_obj
def exporter(context: Context) -> None:
    """Serve this node's own metrics on loopback until interrupted."""
    from dsv41_serving.exporter.serve import run_exporter  # noqa: PLC0415

    made, _ = context.plan()
    click.echo(f"metrics of node {made.node} at http://127.0.0.1:{made.monitoring.exporter_port}/metrics", err=True)
    run_exporter(made, context.plan_file)


@click.command()
@click.option("--every", "every_s", type=click.FloatRange(min=5), help="Repeat every so many seconds (default: once).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per run.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with the API key.")
@click.pass_obj
def canary(context: Context, every_s: float | None, as_json: bool, api_key_file: Path | None) -> None:  # noqa: FBT001
    """Hold a short conversation through the router: think, cancel, call a tool, answer; exit 1 when a step fails."""
    from dsv41_serving.canary.run import run_canary  # noqa: PLC0415
    from dsv41_serving.check.access import find_access  # noqa: PLC0415

    def show(run: CanaryRun) -> None:
        click.echo(run.model_dump_json() if as_json else "\n".join(run.as_lines()))

    made, _ = context.plan()
    access = find_access(made, key_file=api_key_file)
    last = asyncio.run(run_canary(made, access=access, every_s=every_s, on_run=show))
    sys.exit(EXIT_OK if last.passed else EXIT_CHECK_FAILED)


@click.group()
def metrics() -> None:
    """The metric contract: what engine, router and exporters serve, and who asks for it."""


@metrics.command("record")
@click.option("--to", "directory", type=click.Path(path_type=Path), required=True, help="Directory of the pages.")
@click.pass_obj
def metrics_record(context: Context, directory: Path) -> None:
    """Record every /metrics page of the running stack, idle and under a small load."""
    from dsv41_serving.observe.recording import record_pages, targets_of  # noqa: PLC0415

    made, _ = context.plan()
    asyncio.run(record_pages(made, targets_of(made, context.load().spec), directory, click.echo))


@metrics.command("configure")
@click.option("--to", "directory", type=click.Path(path_type=Path), required=True, help="Directory to write below.")
@click.pass_obj
def metrics_configure(context: Context, directory: Path) -> None:
    """Write the configuration of Prometheus and Alertmanager, for a stack that systemd does not run."""
    from dsv41_serving.plan.monitoring import CONFIG_DIR, monitoring_files  # noqa: PLC0415

    made, _ = context.plan()
    for file in monitoring_files(made.monitoring, made):
        target = directory / Path(file.path).relative_to(CONFIG_DIR)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.text, encoding="utf-8")
        click.echo(f"wrote {target}")


@metrics.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def metrics_list(as_json: bool) -> None:  # noqa: FBT001
    """List what this project's own exporter serves."""
    from dsv41_serving.exporter.metrics import METRICS  # noqa: PLC0415

    if as_json:
        rows = [{"name": m.name, "type": m.kind, "labels": m.labels, "help": m.help} for m in METRICS]
        click.echo(json.dumps(rows, indent=2))
        return
    for metric in METRICS:
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        click.echo(f"{metric.kind:<8} {metric.name}{labels}  {metric.help}")


@click.command()
@click.argument("alert", required=False)
@click.option("--list", "list_only", is_flag=True, help="Only name the alerts.")
@click.option("--prometheus", "url", type=ADDRESS, help="Ask this Prometheus instead of the node's own.")
@click.pass_obj
def explain(context: Context, alert: str | None, list_only: bool, url: str | None) -> None:  # noqa: FBT001
    """Say what ALERT means, gather the evidence its runbook section names, and what to do."""
    from dsv41_serving.observe.explain import explain as explain_alert  # noqa: PLC0415
    from dsv41_serving.observe.prometheus import Prometheus  # noqa: PLC0415
    from dsv41_serving.observe.runbook import find_section, read_runbook  # noqa: PLC0415

    if list_only or alert is None:
        for section in read_runbook().values():
            click.echo(f"{section.alert:<26} {section.meaning.split('. ')[0].rstrip('.')}")
        return
    section = find_section(alert)
    spec = context.load().spec
    for line in explain_alert(section, Prometheus(url or _own_prometheus(context)), spec.node.state_dir):
        click.echo(line)


@click.command()
@click.option("--once", is_flag=True, help="Print once and end; the only way without a terminal.")
@click.option("--every", "every_s", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds.")
@click.option("--prometheus", "url", type=ADDRESS, help="Ask this Prometheus instead of the node's own.")
@click.pass_obj
def top(context: Context, once: bool, every_s: float, url: str | None) -> None:  # noqa: FBT001
    """Show the main numbers of the node, live."""
    from dsv41_serving.observe.prometheus import Prometheus  # noqa: PLC0415
    from dsv41_serving.observe.top import show_top  # noqa: PLC0415

    show_top(Prometheus(url or _own_prometheus(context)), once=once, every_s=every_s)


def _own_prometheus(context: Context) -> str:
    return f"http://127.0.0.1:{context.load().spec.monitoring.prometheus_port}"
