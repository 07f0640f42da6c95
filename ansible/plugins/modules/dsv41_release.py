"""Ansible module: make a release current, truthful in check mode and with --diff. The work is `dsv41 release activate`."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: dsv41_release
short_description: Make an installed release current and write the files of its plan
options:
  root:
    description: Where releases are installed.
    type: path
    required: true
  name:
    description: Release to make current.
    type: str
    required: true
  dry_run:
    description: Only return what would change; never reported as a change.
    type: bool
    default: false
"""


def main() -> None:
    """Activate the release, or say what that would change."""
    module = AnsibleModule(
        {
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "dry_run": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    root, name = Path(module.params["root"]), module.params["name"]
    python = root / "releases" / name / "venv" / "bin" / "python"
    if not (root / "releases" / name / ".complete").exists():
        if not module.check_mode:
            module.fail_json(msg=f"release {name} is not installed below {root}; run the role `release` first")
        # A bare node in check mode: what its units would say is known only once the release is there.
        unknown = f"release {name}: not installed yet, so the files it renders cannot be shown\n"
        module.exit_json(
            changed=not module.params["dry_run"], known=False, restart=True, files=[], enabled=[], services=[],
            after=name, diff={"prepared": unknown},
        )  # fmt: skip
    preview = module.check_mode or module.params["dry_run"]
    command = [str(python), "-m", "dsv41_serving", "release", "--directory", str(root), "activate", name, "--json"]
    status, output, errors = module.run_command([*command, *(["--dry-run"] if preview else [])])
    if status != 0:
        module.fail_json(msg=errors.strip() or output.strip(), rc=status)
    done = json.loads(output)
    text = done.pop("diff")
    if done["before"] != name:
        text = f"--- current release\n+++ current release\n-{done['before'] or 'none'}\n+{name}\n{text}"
    changed = bool(text) and not module.params["dry_run"]
    module.exit_json(changed=changed, known=True, diff={"prepared": text} if changed else {}, **done)


if __name__ == "__main__":
    main()
