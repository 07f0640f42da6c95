"""Start, stop, look at and judge what runs on this node."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dsv41_serving.cli.output import out, print_json, say, telling
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_OK, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.cli.context import Context
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan import Plan, Service
    from dsv41_serving.run.drain import Drained


def _drain(made: Plan, timeout_s: float | None) -> Drained:
    from dsv41_serving.run.drain import drain_node  # noqa: PLC0415

    bound = max(worker.drain_timeout_s for worker in made.workers) if timeout_s is None else timeout_s
    said: list[str] = []

    def show(text: str) -> None:
        if text not in said[-1:]:
            said.append(text)
            say(text)

    return asyncio.run(drain_node(made, bound, show))


def _find_service(made: Plan, role: str) -> Service:
    """Return the service `role` of this host."""
    names = ", ".join(service.name for service in made.services)
    try:
        service = made.service(role)
    except KeyError:
        raise InputError(
            f"this plan has no service '{role}'", where=f"shape {made.shape}", remedy=f"use one of: {names}"
        ) from None
    if service not in made.services:
        raise InputError(f"'{role}' runs on {service.node}", where="key hosts", remedy=f"here is {names}")
    return service


def _refuse_without_router(made: Plan, verb: str) -> None:
    """Raise InputError on a host that has no door to close."""
    if not made.has_router:
        raise InputError(
            f"the router runs on {made.router.node}", where="key hosts", remedy=f"run `dsv41 {verb}` there"
        )


def _foresee(context: Context, made: Plan, found: Facts, services: Sequence[Service]) -> None:
    """Keep what is predicted of the engines among `services`, and prove the hand-off before its writer starts.

    A service that runs the stored plan starts even where the node file beside it can no longer be read.
    """
    from dsv41_serving.capacity.prediction import keep_prediction  # noqa: PLC0415
    from dsv41_serving.transport.baseline import keep_baseline  # noqa: PLC0415

    try:
        spec = context.load().spec
    except InputError as error:
        if context.plan_file is None:
            raise
        say(f"neither capacity nor hand-off are checked: {error}")
        return
    if strange := [engine.name for engine in made.engines if engine.name not in spec.engines]:
        say(f"neither capacity nor hand-off are checked: the node file knows no engine '{strange[0]}'")
        return
    if any(service.is_engine for service in services):
        keep_prediction(spec, made.state_dir, found)
    if any(service.kind == "prefill" for service in services):
        keep_baseline(spec, made, found, arguments=context.arguments(), say=say)


@click.command()
@click.argument("role")
@click.pass_obj
def run(context: Context, role: str) -> None:
    """Run one service of the plan (prefill, decode, router) in the foreground, as systemd does."""
    from dsv41_serving.run.prepare import prepare_start  # noqa: PLC0415
    from dsv41_serving.run.service import report_preparation, run_service  # noqa: PLC0415

    made, found = context.plan()
    service = _find_service(made, role)
    prepare_start(made, found, (service,), report_preparation(service, say))
    _foresee(context, made, found, (service,))
    run_service(made, service, say=say)


@click.command()
@click.option("--detach", is_flag=True, help="Return when the gate has passed and leave the stack running.")
@click.pass_obj
def up(context: Context, detach: bool) -> None:  # noqa: FBT001
    """Run the whole plan on this machine; Ctrl-C drains and stops it."""
    from dsv41_serving.exporter.serve import start_beside  # noqa: PLC0415
    from dsv41_serving.run.prepare import prepare_start  # noqa: PLC0415
    from dsv41_serving.run.up import hold_stack, launch_stack, refuse_second  # noqa: PLC0415

    made, found = context.plan()
    if made.elsewhere:
        raise InputError(
            f"{made.elsewhere[0].name} runs on {made.elsewhere[0].node}, `dsv41 up` runs a whole plan",
            where="key hosts",
            remedy="deploy it with ansible/, or start each service with `dsv41 run ROLE`",
        )
    refuse_second(made)
    prepare_start(made, found, made.services, say)
    _foresee(context, made, found, made.services)
    if detach:
        options = context.arguments()
        launch_stack(made, out, [sys.executable, "-m", "dsv41_serving", *options, "up"], options)
    else:
        start_beside(made, say)
        hold_stack(made, out, context.arguments())


@click.command()
@click.pass_obj
def down(context: Context) -> None:
    """Stop what `dsv41 up` runs, and what an earlier one left behind."""
    from dsv41_serving.run.up import stop_stack  # noqa: PLC0415

    made, _ = context.plan()
    with telling("it goes on stopping; `dsv41 status` shows it, `dsv41 down` waits again"):
        click.echo(stop_stack(made, out))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def status(context: Context, as_json: bool) -> None:  # noqa: FBT001
    """Show what runs; exit 1 unless everything is ready."""
    from dsv41_serving.run.status import as_rows, as_table, list_problems, read_status  # noqa: PLC0415

    state_dir = context.state_dir()
    rows = asyncio.run(read_status(state_dir))
    if as_json:
        print_json(as_rows(rows))
    elif rows:
        out.print(as_table(rows))
        for problem in list_problems(state_dir, rows):
            click.echo(problem)
    else:
        click.echo("nothing is running")
    sys.exit(EXIT_OK if rows and all(row.state == "ready" for row in rows) else EXIT_CHECK_FAILED)


@click.command()
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    help="Seconds that running requests may take; what is left then is cancelled (default: engine.drain_timeout_s).",
)
@click.option("--undo", is_flag=True, help="Let requests in again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def drain(context: Context, timeout_s: float | None, undo: bool, as_json: bool) -> None:  # noqa: FBT001
    """Send new requests away with 503 and wait until those inside have finished; everything stays up."""
    from dsv41_serving.run.door import open_door  # noqa: PLC0415
    from dsv41_serving.run.drain import refuse_starting  # noqa: PLC0415

    made, _ = context.plan()
    _refuse_without_router(made, "drain")
    if undo:
        asyncio.run(open_door(made))
        click.echo("open: requests are served")
        return
    refuse_starting(made)
    with telling("the router stays closed; `dsv41 drain` waits again, `dsv41 drain --undo` opens it"):
        done = _drain(made, timeout_s)
    if as_json:
        print_json(asdict(done))
    else:
        click.echo(
            f"drained in {done.seconds:.1f} s"
            + (f"; cancelled {done.cancelled}" if done.cancelled else "")
            + (f"; still there: {done.left}" if done.left else "")
            + ("" if done.closed else "; no router was running")
        )
    sys.exit(EXIT_CHECK_FAILED if done.left else EXIT_OK)


@click.command()
@click.option("--pair", is_flag=True, help="Restart the engines as well, not the router alone.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="As of `dsv41 drain`.")
@click.pass_obj
def restart(context: Context, pair: bool, timeout_s: float | None) -> None:  # noqa: FBT001
    """Drain, restart, and return when the gate has passed again."""
    from dsv41_serving.run.progress import Progress  # noqa: PLC0415
    from dsv41_serving.run.restart import restart_services  # noqa: PLC0415

    made, _ = context.plan()
    _refuse_without_router(made, "restart")
    far = [worker for worker in made.workers if worker in made.elsewhere]
    if pair and far:
        raise InputError(
            f"{far[0].name} runs on {far[0].node} and is not restarted from here",
            where="key hosts",
            remedy="on the controller, in ansible/: `ansible-playbook -i inventory playbooks/restart.yml`",
        )
    with telling("nothing was restarted and the router stays closed; `dsv41 drain --undo` opens it"):
        _drain(made, timeout_s)
    with telling("the restart goes on; `dsv41 status` shows it"), Progress(out) as progress:
        restart_services(made, progress.show, pair=pair)
    click.echo("restarted: " + (", ".join(service.name for service in made.services) if pair else "router"))


@click.command()
@click.argument("role")
@click.option("--if-failed", is_flag=True, help="Do nothing when systemd says that the service ended well.")
@click.pass_obj
def incident(context: Context, role: str, if_failed: bool) -> None:  # noqa: FBT001
    """Save journal, status, GPUs, plan and crash dump paths of ROLE in one file below the state directory."""
    from dsv41_serving.run.incident import failed, save_incident  # noqa: PLC0415

    if if_failed and not failed(os.environ):
        return
    made, found = context.plan()
    click.echo(f"saved {save_incident(made, _find_service(made, role), found.gpus)}")


@click.command()
@click.argument("role", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def gate(context: Context, role: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Run the gate of ROLE, or of everything, against what runs now; exit 1 when a check fails."""
    from dsv41_serving.check.result import all_passed, as_rows, as_table  # noqa: PLC0415
    from dsv41_serving.run.gate import check_running  # noqa: PLC0415

    made, found = context.plan()
    findings = asyncio.run(check_running(made, role, found.gpus))
    if as_json:
        print_json(as_rows(findings))
    else:
        out.print(as_table(findings))
    sys.exit(EXIT_OK if all_passed(findings) else EXIT_CHECK_FAILED)


@click.command()
@click.option("--hashes", is_flag=True, help="Also compute every sha256 that is known.")
@click.pass_obj
def model(context: Context, hashes: bool) -> None:  # noqa: FBT001
    """Check the files of the model, or make an embedded one; print its directory."""
    from dsv41_serving.check.start import find_checkpoint  # noqa: PLC0415

    made, _ = context.plan()
    click.echo(find_checkpoint(made, say, hashes=hashes))
