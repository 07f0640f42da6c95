"""Ansible module: fail when a file system of the node has less room than the directories on it need together."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: dsv41_room
short_description: Compare the free room of a node with what an installation takes; changes nothing
options:
  needed:
    description: Bytes by directory, as the filter dsv41_room returns them. A directory may not exist yet.
    type: dict
    required: true
"""


def find_shortages(needed: dict[str, int]) -> list[str]:
    """Return one line per file system that is short, with the directories of `needed` (bytes) that lie or will lie on it."""
    shares: dict[int, list[str]] = defaultdict(list)
    for directory in needed:
        shares[_nearest(directory).stat().st_dev].append(directory)
    lines = []
    for directories in shares.values():
        wanted = sum(needed[directory] for directory in directories)
        free = shutil.disk_usage(_nearest(directories[0])).free
        if free < wanted:
            names = " and ".join(directories)
            lines.append(f"{names}: {free / 1e9:.1f} GB free, {wanted / 1e9:.1f} GB needed")
    return lines


def _nearest(directory: str) -> Path:
    path = Path(directory)
    return next(parent for parent in (path, *path.parents) if parent.exists())


def main() -> None:
    """Fail with one line when there is not enough."""
    module = AnsibleModule({"needed": {"type": "dict", "required": True}}, supports_check_mode=True)
    if shortages := find_shortages(module.params["needed"]):
        module.fail_json(msg=f"{'; '.join(shortages)}; make room, or set dsv41_root to a larger disk")
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
