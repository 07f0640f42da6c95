"""What fits."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.output import out, print_json
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK, InputError

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


@click.command()
@click.option(
    "--context", "lengths", type=click.IntRange(min=1), multiple=True, help="Context lengths to show, in tokens."
)
@click.option("--gpu-memory", "gpu_gib", type=click.FloatRange(min=1), help="GiB of one GPU, when none is here.")
@click.option(
    "--host-memory",
    "host_gib",
    type=click.FloatRange(min=1),
    help="GiB of host memory, when this machine is not the one.",
)
@click.option(
    "--disk", "disk_gb_s", type=click.FloatRange(min=0.01), help="GB/s the model is read at (default: tried)."
)
@click.option("--running", is_flag=True, help="Compare with what the running engines report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def capacity(  # noqa: PLR0917 - click passes every option
    context: Context,
    lengths: tuple[int, ...],
    gpu_gib: float | None,
    host_gib: float | None,
    disk_gb_s: float | None,
    running: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Say what fits: weights, KV, sessions, hand-off, load time, for every shape; exit 1 when the chosen one does not."""
    from dsv41_serving.bench.provenance import describe_run  # noqa: PLC0415
    from dsv41_serving.capacity import estimate_node, measured, read_shape, report, request  # noqa: PLC0415

    spec, found = context.load().spec, context.facts()
    checkpoint = request.find_checkpoint(spec)
    shape = read_shape(checkpoint, spec.model.name)
    gpu_bytes = request.find_gpu_bytes(spec, found, gpu_gib)
    shown = request.choose_lengths(spec, lengths)
    hosts = {
        name: request.find_shape_host(spec, found, name, gpu_gib=gpu_gib, host_gib=host_gib) for name in spec.shapes
    }
    nodes = [estimate_node(spec, shape, gpu_bytes, name, host) for name, host in hosts.items()]
    chosen = next(node for node in nodes if node.shape_name == spec.shape)
    rows = []
    if running:
        rows = measured.compare_reports(chosen, asyncio.run(measured.read_reports(context.plan()[0])))
        if not rows:
            raise InputError("no engine answers", where=f"node {spec.node.name}", remedy="start it: dsv41 up")
    weights = chosen.engines[0].weights
    size = weights.gpu * chosen.engines[0].settings.tp + weights.engram_host
    load_s = request.estimate_load_s(checkpoint, size, disk_gb_s)
    if as_json:
        made = {"provenance": describe_run(" ".join(["dsv41", *sys.argv[1:]]))} if running else {}
        print_json({**made, **report.as_json(nodes, shape, shown, rows, load_s)})
    else:
        out.print(report.describe_node(chosen, shape, shown, load_s))
        if len(nodes) > 1:
            out.print()
            out.print(report.describe_shapes(nodes, shape, shown))
        if rows:
            out.print()
            out.print(report.describe_comparison(rows))
    sys.exit(EXIT_OK if chosen.fits else EXIT_CHECK_FAILED)
