"""What the command lines print."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print one line of a command's output at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Print one line that is not output: a fault or a summary."""
    sys.stderr.write(line + "\n")
