"""What a client may send, as the README says it: the table `[contract]`, and what each router does to a request.

`python -m dsv41_serving.contract.reference README.md` writes both between their markers; a test compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticUndefined

from dsv41_serving.plan.files import toml_value
from dsv41_serving.resources import data_dir
from dsv41_serving.spec.model import Contract

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTCOMES = {"refused": "Refuses (400)", "dropped": "Drops in silence", "changed": "Changes"}


def write_contract() -> str:
    """Return the table of `[contract]`: key, default, meaning."""
    rows = ["| key | default | what it decides |", "|---|---|---|"]
    for name, field in Contract.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if default is PydanticUndefined:
            raise TypeError(f"contract.{name} has no default")
        rows.append(f"| `contract.{name}` | `{toml_value(default)}` | {field.description} |")
    return "\n".join(rows)


def write_losses(record: Mapping[str, Any]) -> str:
    """Return what each router of `record` does to the fields of a request that an engine would have taken as they are."""
    paragraphs = []
    for kind, found in record["routers"].items():
        lines = [f"`{kind}` {found['version']}"]
        for outcome, verb in OUTCOMES.items():
            names = [
                ("" if api == "chat" else "on completions ") + _name(label)
                for api in ("chat", "completions")
                for label, row in found[api].items()
                if row["outcome"] == outcome and _matters(row)
            ]
            if names:
                lines.append(f"- {verb}: {', '.join(names)}.")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def insert(text: str, name: str, body: str) -> str:
    """Return `text` with `body` between the markers called `name`. Raises ValueError when they are not there."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, found, rest = text.partition(start)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no markers called {name}")
    return f"{head}{start}{body}\n{end}{tail}"


def insert_all(text: str) -> str:
    """Return `text` with both parts as they are now."""
    record = json.loads((data_dir("deploy") / "contract" / "router-fields.json").read_text(encoding="utf-8"))
    return insert(insert(text, "contract", write_contract()), "routers", write_losses(record))


def _matters(row: Mapping[str, Any]) -> bool:
    """Whether an engine takes the field, and what became of it is more than another spelling of the same number."""
    return row["engine_status"] == 200 and "32 bits" not in row.get("how", "")  # noqa: PLR2004 - HTTP


def _name(label: str) -> str:
    field, _, form = label.partition(" ")
    return f"`{field}`" + (f" {form}" if form else "")


def main() -> None:
    """Rewrite the parts of the file named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(insert_all(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
