"""Look at the node description."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.table import Table

from dsv41_serving.cli.output import out, print_json
from dsv41_serving.plan.files import node_file_text
from dsv41_serving.spec import explain_key, json_schema, leaves, load_spec, profile_names

if TYPE_CHECKING:
    from dsv41_serving.cli.context import Context


@click.group()
def config() -> None:
    """Look at the node description."""


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: values and origins.")
@click.pass_obj
def config_show(context: Context, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Print the merged description; every value with its origin."""
    loaded = context.load()
    if as_json:
        print_json({"spec": loaded.spec.model_dump(), "origins": dict(loaded.origins)})
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
    print_json(json_schema())


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
        print_json(asdict(explanation))
        return
    for label, text in asdict(explanation).items():
        if text not in ("", None):
            click.echo(f"{label:<8} {text}")
