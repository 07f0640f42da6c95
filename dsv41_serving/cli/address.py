"""The type of options that name a server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from click import Context, Parameter


class Address(click.ParamType[str]):
    """Base URL of an HTTP server; anything else is refused before it is asked."""

    name = "url"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        """Return `value`. Raises click.BadParameter when it has no scheme or host."""
        try:
            parts = urlsplit(value)
            known = (
                parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
            )
        except ValueError:  # a port that is no number
            known = False
        if not known:
            self.fail(f"'{value}' is no address: write it as http://HOST:PORT.", param, ctx)
        return value


ADDRESS = Address()
