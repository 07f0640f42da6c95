"""Where the data files of this project are: profiles, model manifests, unit templates.

In a checkout they are the top-level directories; in an installed wheel they lie inside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Return the directory `name` ('deploy', 'systemd', 'monitoring') of the checkout or of the installed wheel.

    Raises FileNotFoundError when the installation lacks it, which is a packaging fault.
    """
    for candidate in (_PACKAGE / "data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of dsv41-serving lacks its '{name}' directory; install it again")


def lock_file() -> Path | None:
    """Return the lock file of the environment this release is written for, or None when it was not installed with it."""
    candidates = (_PACKAGE / "data" / "requirements.lock", _PACKAGE.parent / "requirements.lock")
    return next((path for path in candidates if path.is_file()), None)
