"""Read secrets: from the credentials systemd passes to a unit, else from the file the node description names."""

from __future__ import annotations

import os
from pathlib import Path

from dsv41_serving.errors import InputError

# Names of the systemd credentials.
API_KEY = "api-key"
TLS_KEY = "tls-key"


def find_credential(name: str, file: str) -> Path:
    """Return where the secret lies: systemd's copy called `name` when this unit has one, else `file`.

    systemd copies the file as root before the unit starts, so the service user needs no right to read the original.
    """
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    passed = Path(directory, name)
    return passed if directory and passed.exists() else Path(file)


def read_key(path: Path) -> str:
    """Return the key in `path`. Raises InputError when it cannot be read, or is not one line of printable ASCII."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(
            f"the API key cannot be read ({reason})",
            where=str(path),
            remedy="name a file that holds the key alone, or run as a user who may read it",
        ) from None
    if not key:
        raise InputError("holds no API key", where=str(path), remedy="put the key into it, on one line")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(
            "holds more than one API key, or a character a header cannot carry",
            where=str(path),
            remedy="put one key into it, on one line, without blanks",
        )
    return key
