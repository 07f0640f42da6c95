"""Where verbs print: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

out = Console(soft_wrap=False)
err = Console(stderr=True, soft_wrap=True)


def say(line: str) -> None:
    """Print one line that is not the answer."""
    err.print(line, markup=False, highlight=False)


@contextmanager
def telling(what_goes_on: str) -> Iterator[None]:
    """When Ctrl-C ends the block, say what it does not end."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"dsv41: {what_goes_on}")
        raise


def refuse_unwritable(path: Path) -> None:
    """Raise InputError now rather than after minutes of work when `path` cannot be written as a file.

    Makes its directory; a file that was not there is not left behind.
    """
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        new = not path.exists()
        with path.open("a", encoding="utf-8"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", where=str(path), remedy="name another file") from None


def print_json(value: Any) -> None:
    """Print an answer as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
