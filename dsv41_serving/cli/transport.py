"""The hand-off, proven."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.output import out, say
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


@click.group()
def transport() -> None:
    """The hand-off of KV from prefill to decode."""


@transport.command("prove")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-store", is_flag=True, help="Do not keep the result as the baseline of this node.")
@click.pass_obj
def transport_prove(context: Context, as_json: bool, no_store: bool) -> None:  # noqa: FBT001
    """Move KV-shaped memory between the groups; exit 1 when bytes are wrong or a pair is slower than its link."""
    from dsv41_serving.capacity import read_shape, request  # noqa: PLC0415
    from dsv41_serving.transport.proof import store_proof  # noqa: PLC0415
    from dsv41_serving.transport.prove import prove_transport  # noqa: PLC0415
    from dsv41_serving.transport.report import describe_proof  # noqa: PLC0415

    made, found = context.plan()
    spec = context.load().spec
    shape = read_shape(request.find_checkpoint(spec), spec.model.name)
    command = " ".join(["dsv41", *context.arguments(), "transport", "prove"])
    proof = prove_transport(spec, made, found, shape, command=command, say=say)
    if not no_store:
        store_proof(proof, made.state_dir)
    if as_json:
        click.echo(proof.model_dump_json(indent=2))
    else:
        out.print(describe_proof(proof))
    sys.exit(EXIT_OK if proof.good else EXIT_CHECK_FAILED)
