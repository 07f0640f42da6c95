"""What an operator may ask of an op, and how the request is read."""

from __future__ import annotations

import enum

VARIABLE = "DSV41_KERNELS"


class Mode(enum.Enum):
    """`OFF`: the engine's path. `ON`: ours. `SHADOW`: the engine's path, and ours beside it on a sample of calls."""

    OFF = "off"
    ON = "on"
    SHADOW = "shadow"


class PluginError(Exception):
    """The plugin cannot do what was asked. The message is one line: what, where, how to mend it."""


def parse(text: str, known: list[str]) -> dict[str, Mode]:
    """Read `op=mode,op=mode`; `all=mode` sets every op first. Raises PluginError for an unknown op or mode.

    Returns only the ops that the text names.
    """
    modes: dict[str, Mode] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        try:
            mode = Mode(value.lower())
        except ValueError:
            mode = None
        if not separator or mode is None:
            raise PluginError(f"{VARIABLE}: {part!r} is not op=off, op=on or op=shadow; write for example compress=on")
        if name != "all" and name not in known:
            raise PluginError(f"{VARIABLE}: no op {name!r} can be hooked; known are all, {', '.join(known)}")
        modes |= dict.fromkeys(known if name == "all" else [name], mode)
    return modes
