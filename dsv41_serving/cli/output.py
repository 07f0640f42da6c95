"""Where verbs print: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

out = Console(soft_wrap=False)
err = Console(stderr=True, soft_wrap=True)


def say(line: str) -> None:
    """Print one line that is not the answer."""
    err.print(line, markup=False, highlight=False)


def print_json(value: Any) -> None:
    """Print an answer as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
