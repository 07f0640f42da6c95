"""`dsv41 release` and `dsv41 bundle`: verbs, no logic."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dsv41_serving.release.directory import Releases


@click.group()
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("/opt/dsv41"),
    show_default=True,
    help="Where releases are installed.",
)
@click.pass_context
def release(ctx: click.Context, directory: Path) -> None:
    """Look at the releases of this node and switch between them."""
    ctx.obj = Releases(directory)


@release.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def release_list(releases: Releases, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """List the installed releases, the one activated last first."""
    rows = [
        {"name": name, "current": name == releases.current, "failed": releases.failure(name)}
        for name in releases.installed()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo(f"no release is installed below {releases.root}")
    for row in rows:
        note = f"  gave up: {row['failed']}" if row["failed"] else ""
        click.echo(f"{'*' if row['current'] else ' '} {row['name']}{note}")


@release.command("activate")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Say what would change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def release_activate(releases: Releases, name: str, dry_run: bool, as_json: bool) -> None:  # noqa: FBT001
    """Make NAME current and write the files of its plan. Starts and stops nothing."""
    from dsv41_serving.release.activate import activate  # noqa: PLC0415

    done = activate(releases, name, Path("/"), dry_run=dry_run)
    if as_json:
        click.echo(done.as_json())
        return
    click.echo(done.diff, nl=False)
    click.echo(f"{done.before or 'no release'} -> {done.after}, {len(done.files)} files changed")


@release.command("previous")
@click.pass_obj
def release_previous(releases: Releases) -> None:
    """Print the release a rollback goes to."""
    click.echo(releases.previous())


@release.command("give-up")
@click.argument("name")
@click.argument("reason")
@click.pass_obj
def release_give_up(releases: Releases, name: str, reason: str) -> None:
    """Remember that NAME did not serve, so that no rollback goes to it."""
    releases.mark_failed(name, reason)


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="Directory to write the bundle into.",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    show_default=True,
    help="Checkout of this project.",
)
@click.option("--extra", "extras", multiple=True, help="What the node needs (default: engine and embedded).")
@click.option("--wheels", is_flag=True, help="Include every locked package, for nodes without a network.")
@click.option(
    "--binary", "binaries", multiple=True, type=click.Path(path_type=Path), help="Archive that travels along."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bundle(  # noqa: PLR0917 - click passes every option
    output: Path,
    source: Path,
    extras: tuple[str, ...],
    wheels: bool,  # noqa: FBT001
    binaries: tuple[Path, ...],
    as_json: bool,  # noqa: FBT001
) -> None:
    """Write one file that a node is installed from."""
    from dsv41_serving.release.bundle import DEFAULT_EXTRAS, make_bundle  # noqa: PLC0415

    made = make_bundle(
        source,
        output,
        extras=extras or DEFAULT_EXTRAS,
        wheels=wheels,
        binaries=binaries,
        report=lambda line: click.echo(line, err=True),
    )
    click.echo(made.as_json() if as_json else made.path)
