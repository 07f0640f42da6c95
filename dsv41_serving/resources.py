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
