"""The command line: verbs, no logic. Exit codes: 0 fine, 1 a check failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from dsv41_serving.bench.commands import bench
from dsv41_serving.dashboards.commands import dashboards
from dsv41_serving.errors import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, EXIT_OK, Dsv41Error, InputError
from dsv41_serving.facts import describe, read_facts
from dsv41_serving.observe.commands import canary, explain, exporter, metrics, top
from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.plan.files import node_file_text
from dsv41_serving.plan.install import diff_files, read_plan, refuse_home, write_files
from dsv41_serving.plan.table import command_text, describe_plan
from dsv41_serving.release.commands import bundle, release
from dsv41_serving.release.directory import running_release
from dsv41_serving.spec import LoadedSpec, explain_key, json_schema, leaves, load_spec, profile_names

if TYPE_CHECKING:
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan import Service
    from dsv41_serving.run.drain import Drained

DEFAULT_NODE_FILES = (Path("node.toml"), Path("/etc/dsv41/node.toml"))

out = Console(soft_wrap=False)
err = Console(stderr=True, soft_wrap=True)


@dataclass(frozen=True)
class Context:
    """The global options, and what is derived from them on first use."""

    node_file: Path | None
    profile: str | None
    overrides: tuple[str, ...]
    root: Path
    plan_file: Path | None = None

    def load(self) -> LoadedSpec:
        """Read and validate the node description."""
        node_file = self.node_file
        if node_file is None and self.profile is None:
            node_file = next((path for path in DEFAULT_NODE_FILES if path.exists()), None)
            if node_file is None:
                raise InputError(
                    "no node file (looked for ./node.toml and /etc/dsv41/node.toml)",
                    remedy="write one, name one with --node, or choose a profile: --profile embedded",
                )
        return load_spec(node_file, profile=self.profile, overrides=self.overrides)

    def facts(self) -> Facts:
        """Read the machine."""
        return read_facts(self.root)

    def plan(self, installation: Installation | None = None) -> tuple[Plan, Facts]:
        """Make the plan of this machine, or read the stored one when --plan names it."""
        facts = self.facts()
        if self.plan_file is not None and installation is None:
            return read_plan(self.plan_file), facts
        return make_plan(self.load(), facts, installation or Installation(python=sys.executable)), facts

    def state_dir(self) -> str:
        """Return where the records lie; works where the plan itself cannot be made."""
        return self.load().spec.node.state_dir if self.plan_file is None else read_plan(self.plan_file).state_dir

    def plan_if_possible(self) -> Plan | None:
        """Make the plan, or return None where this machine is not the one it is for."""
        try:
            return self.plan()[0]
        except InputError:
            return None

    def arguments(self) -> list[str]:
        """Return the global options again, for a process that shall mean the same node."""
        options: list[str] = []
        if self.plan_file is not None:
            options += ["--plan", str(self.plan_file.resolve())]
        if self.node_file is not None:
            options += ["--node", str(self.node_file.resolve())]
        if self.profile is not None:
            options += ["--profile", self.profile]
        for override in self.overrides:
            options += ["--set", override]
        return options


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


cli.add_command(release)
cli.add_command(bundle)
cli.add_command(bench)
for watcher in (exporter, canary, explain, top, metrics, dashboards):
    cli.add_command(watcher)


@cli.group()
def config() -> None:
    """Look at the node description."""


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: values and origins.")
@click.pass_obj
def config_show(context: Context, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Print the merged description; every value with its origin."""
    loaded = context.load()
    if as_json:
        _print_json({"spec": loaded.spec.model_dump(), "origins": dict(loaded.origins)})
    else:
        click.echo(node_file_text(loaded), nl=False)


@config.command("check")
@click.pass_obj
def config_check(context: Context) -> None:
    """Validate the description; say every mistake in one line."""
    loaded = context.load()
    count = sum(1 for _ in leaves(loaded.spec.model_dump()))
    click.echo(
        f"ok: profile {loaded.spec.profile}, shape {loaded.spec.shape}, {count} values ({loaded.spec.provenance.status})"
    )


@config.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of a node file."""
    _print_json(json_schema())


@config.command("profiles")
def config_profiles() -> None:
    """List the profiles that ship with this release."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("profile", "shapes", "GPU", "values"):
        table.add_column(column)
    for name in profile_names():
        spec = load_spec(profile=name).spec
        table.add_row(
            name, ", ".join(spec.shapes), spec.engine.compute_capability or "none (CPU)", spec.provenance.status
        )
    out.print(table)


@config.command("explain")
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def config_explain(context: Context, key: str, as_json: bool) -> None:  # noqa: FBT001
    """Say what KEY means, what it is, and where its value comes from."""
    explanation = explain_key(context.load(), key)
    if as_json:
        _print_json(asdict(explanation))
        return
    for label, text in asdict(explanation).items():
        if text not in ("", None):
            click.echo(f"{label:<8} {text}")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def facts(context: Context, as_json: bool) -> None:  # noqa: FBT001
    """Say what this machine is: GPUs, NUMA nodes, memory, limits, kernel settings, ports."""
    found = context.facts()
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        out.print(describe(found))


@cli.command()
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


@cli.command()
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


@cli.command()
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


@cli.group()
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
    proof = prove_transport(spec, made, found, shape, command=command, say=_say)
    if not no_store:
        store_proof(proof, made.state_dir)
    if as_json:
        click.echo(proof.model_dump_json(indent=2))
    else:
        out.print(describe_proof(proof))
    sys.exit(EXIT_OK if proof.good else EXIT_CHECK_FAILED)


@cli.command()
@click.option(
    "--context", "lengths", type=click.IntRange(min=1), multiple=True, help="Context lengths to show, in tokens."
)
@click.option("--gpu-memory", "gpu_gib", type=click.FloatRange(min=1), help="GiB of one GPU, when none is here.")
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
    disk_gb_s: float | None,
    running: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Say what fits: weights, KV, sessions, hand-off, load time, for every shape; exit 1 when the chosen one does not."""
    from dsv41_serving.capacity import estimate_node, measured, read_shape, report, request  # noqa: PLC0415

    spec, found = context.load().spec, context.facts()
    checkpoint = request.find_checkpoint(spec)
    shape = read_shape(checkpoint, spec.model.name)
    gpu_bytes = request.find_gpu_bytes(spec, found, gpu_gib)
    shown = request.choose_lengths(spec, lengths)
    nodes = [estimate_node(spec, shape, gpu_bytes, name) for name in spec.shapes]
    chosen = next(node for node in nodes if node.shape_name == spec.shape)
    rows = []
    if running:
        rows = measured.compare_reports(chosen, asyncio.run(measured.read_reports(context.plan()[0])))
        if not rows:
            raise InputError("no engine answers", where=f"node {spec.node.name}", remedy="start it: dsv41 up")
    if as_json:
        _print_json(report.as_json(nodes, shape, shown, rows))
    else:
        weights = chosen.engines[0].weights
        size = weights.gpu * chosen.engines[0].settings.tp + weights.engram_host
        out.print(report.describe_node(chosen, shape, shown, request.estimate_load_s(checkpoint, size, disk_gb_s)))
        if len(nodes) > 1:
            out.print()
            out.print(report.describe_shapes(nodes, shape, shown))
        if rows:
            out.print()
            out.print(report.describe_comparison(rows))
    sys.exit(EXIT_CHECK_FAILED if chosen.short else EXIT_OK)


@cli.command()
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
    scene = gather_scene(loaded, context.facts(), context.root, python=sys.executable, hashes=hashes)
    report = run_checks(scene)
    if as_json:
        _print_json({**report.as_json(), "cleaned": done})
    else:
        for line in done:
            click.echo(f"cleaned {line}")
        for text in report.as_lines():
            out.print(text, soft_wrap=True)
    sys.exit(EXIT_OK if report.passed else EXIT_CHECK_FAILED)


@cli.command()
@click.argument("role")
@click.pass_obj
def run(context: Context, role: str) -> None:
    """Run one service of the plan (prefill, decode, router) in the foreground, as systemd does."""
    from dsv41_serving.run.prepare import prepare_start  # noqa: PLC0415
    from dsv41_serving.run.service import report_preparation, run_service  # noqa: PLC0415

    made, found = context.plan()
    service = _find_service(made, role)
    prepare_start(made, found, (service,), report_preparation(service, _say))
    run_service(made, service, say=_say, read_gpus=lambda: context.facts().gpus)


@cli.command()
@click.option("--detach", is_flag=True, help="Return when the gate has passed and leave the stack running.")
@click.pass_obj
def up(context: Context, detach: bool) -> None:  # noqa: FBT001
    """Run the whole plan on this machine; Ctrl-C drains and stops it."""
    from dsv41_serving.exporter.serve import start_beside  # noqa: PLC0415
    from dsv41_serving.run.prepare import prepare_start  # noqa: PLC0415
    from dsv41_serving.run.up import hold_stack, launch_stack, refuse_second  # noqa: PLC0415

    made, found = context.plan()
    refuse_second(made)
    prepare_start(made, found, made.services, _say)
    if detach:
        launch_stack(made, out, [sys.executable, "-m", "dsv41_serving", *context.arguments(), "up"])
    else:
        start_beside(made, context.load().spec.monitoring, _say)
        hold_stack(made, out)


@cli.command()
@click.pass_obj
def down(context: Context) -> None:
    """Stop what `dsv41 up` runs, and what an earlier one left behind."""
    from dsv41_serving.run.up import stop_stack  # noqa: PLC0415

    made, _ = context.plan()
    click.echo(stop_stack(made, out))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def status(context: Context, as_json: bool) -> None:  # noqa: FBT001
    """Show what runs; exit 1 unless everything is ready."""
    from dsv41_serving.run.status import as_rows, as_table, list_problems, read_status  # noqa: PLC0415

    state_dir = context.state_dir()
    rows = asyncio.run(read_status(state_dir))
    if as_json:
        _print_json(as_rows(rows))
    elif rows:
        out.print(as_table(rows))
        for problem in list_problems(state_dir, rows):
            click.echo(problem)
    else:
        click.echo("nothing is running")
    sys.exit(EXIT_OK if rows and all(row.state == "ready" for row in rows) else EXIT_CHECK_FAILED)


@cli.command()
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

    made, _ = context.plan()
    if undo:
        asyncio.run(open_door(made))
        click.echo("open: requests are served")
        return
    done = _drain(made, timeout_s)
    if as_json:
        _print_json(asdict(done))
    else:
        click.echo(
            f"drained in {done.seconds:.1f} s"
            + (f"; cancelled {done.cancelled}" if done.cancelled else "")
            + (f"; still there: {done.left}" if done.left else "")
            + ("" if done.closed else "; no router was running")
        )
    sys.exit(EXIT_CHECK_FAILED if done.left else EXIT_OK)


@cli.command()
@click.option("--pair", is_flag=True, help="Restart the engines as well, not the router alone.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="As of `dsv41 drain`.")
@click.pass_obj
def restart(context: Context, pair: bool, timeout_s: float | None) -> None:  # noqa: FBT001
    """Drain, restart, and return when the gate has passed again."""
    from dsv41_serving.run.progress import Progress  # noqa: PLC0415
    from dsv41_serving.run.restart import restart_services  # noqa: PLC0415

    made, _ = context.plan()
    _drain(made, timeout_s)
    with Progress(out) as progress:
        restart_services(made, progress.show, pair=pair)
    click.echo("restarted: " + (", ".join(service.name for service in made.services) if pair else "router"))


@cli.command()
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


@cli.command()
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
        _print_json(as_rows(findings))
    else:
        out.print(as_table(findings))
    sys.exit(EXIT_OK if all_passed(findings) else EXIT_CHECK_FAILED)


@cli.command()
@click.option("--hashes", is_flag=True, help="Also compute every sha256 that is known.")
@click.pass_obj
def model(context: Context, hashes: bool) -> None:  # noqa: FBT001
    """Check the files of the model, or make an embedded one; print its directory."""
    from dsv41_serving.check.start import find_checkpoint  # noqa: PLC0415

    made, _ = context.plan()
    click.echo(find_checkpoint(made, _say, hashes=hashes))


@cli.group()
def contract() -> None:
    """Prove and watch what clients get: names, thinking, sampling, tools, errors."""


@contract.command("check")
@click.argument("clauses", nargs=-1, metavar="[CLAUSE]...")
@click.option("--url", help="Judge this address instead of the router of the plan: an engine, or any other deployment.")
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
        _print_json(report.as_json(done))
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
    except (KeyboardInterrupt, click.Abort):
        err.print("dsv41: interrupted", markup=False)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_OK)


def _installation(python: str | None, release_name: str | None) -> Installation:
    return Installation(
        python=python or sys.executable, release=release_name or running_release() or version("dsv41-serving")
    )


def _drain(made: Plan, timeout_s: float | None) -> Drained:
    from dsv41_serving.run.drain import drain_node  # noqa: PLC0415

    bound = max(engine.drain_timeout_s for engine in made.engines) if timeout_s is None else timeout_s
    said: list[str] = []

    def show(text: str) -> None:
        if text not in said[-1:]:
            said.append(text)
            _say(text)

    return asyncio.run(drain_node(made, bound, show))


def _find_service(made: Plan, role: str) -> Service:
    try:
        return made.service(role)
    except KeyError:
        names = ", ".join(service.name for service in made.services)
        raise InputError(
            f"this plan has no service '{role}'", where=f"shape {made.shape}", remedy=f"use one of: {names}"
        ) from None


def _say(line: str) -> None:
    err.print(line, markup=False, highlight=False)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
