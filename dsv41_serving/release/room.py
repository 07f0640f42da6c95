"""How much disk an installation takes on a node. The playbooks ask for it before they copy anything."""

from __future__ import annotations

ENVIRONMENT_BYTES = 13 * 10**9
"""What the locked packages of the extras `engine` and `embedded` take; `tests/node` compares it with a node."""
REST_BYTES = 2 * 10**9
"""Releases, monitoring servers, embedded model, records."""
COPY_DIRECTORY = "/var/tmp"  # noqa: S108 - where roles/node puts the bundle; /tmp may lie in memory
"""Where the bundle lies on the node while it is installed."""


def room_needed(root: str, bundle_bytes: int, *, first: bool) -> dict[str, int]:
    """Return bytes by directory of a node: what installing a bundle of `bundle_bytes` below `root` takes at its height.

    The bundle lies there twice until it is installed: as one file and unpacked, where its wheels are linked into the
    environment. `first`: nothing is installed yet. Later releases share an environment as long as requirements.lock stays.
    """
    kept = ENVIRONMENT_BYTES + REST_BYTES if first else 0
    return {root: kept + bundle_bytes, COPY_DIRECTORY: bundle_bytes}
