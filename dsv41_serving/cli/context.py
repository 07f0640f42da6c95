"""What every verb starts from: the global options, and what is derived from them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_facts
from dsv41_serving.plan import Installation, Plan, make_plan
from dsv41_serving.plan.install import read_plan
from dsv41_serving.spec import LoadedSpec, load_spec

if TYPE_CHECKING:
    from dsv41_serving.facts.model import Facts

DEFAULT_NODE_FILES = (Path("node.toml"), Path("/etc/dsv41/node.toml"))


@dataclass(frozen=True)
class Context:
    """The global options, and what is derived from them on first use."""

    node_file: Path | None
    profile: str | None
    overrides: tuple[str, ...]
    root: Path
    plan_file: Path | None = None

    def load(self) -> LoadedSpec:
        """Read and validate the node description."""
        node_file = self.node_file
        if node_file is None and self.profile is None:
            node_file = next((path for path in DEFAULT_NODE_FILES if path.exists()), None)
            if node_file is None:
                raise InputError(
                    "no node file (looked for ./node.toml and /etc/dsv41/node.toml)",
                    remedy="write one, name one with --node, or choose a profile: --profile embedded",
                )
        return load_spec(node_file, profile=self.profile, overrides=self.overrides)

    def facts(self) -> Facts:
        """Read the machine."""
        return read_facts(self.root)

    def plan(self, installation: Installation | None = None) -> tuple[Plan, Facts]:
        """Make the plan of this machine, or read the stored one when --plan names it."""
        facts = self.facts()
        if self.plan_file is not None and installation is None:
            return read_plan(self.plan_file), facts
        return make_plan(self.load(), facts, installation or Installation(python=sys.executable)), facts

    def state_dir(self) -> str:
        """Return where the records lie; works where the plan itself cannot be made."""
        return self.load().spec.node.state_dir if self.plan_file is None else read_plan(self.plan_file).state_dir

    def plan_if_possible(self) -> Plan | None:
        """Make the plan, or return None where this machine is not the one it is for."""
        try:
            return self.plan()[0]
        except InputError:
            return None

    def arguments(self) -> list[str]:
        """Return the global options again, for a process that shall mean the same node."""
        options: list[str] = []
        if self.plan_file is not None:
            options += ["--plan", str(self.plan_file.resolve())]
        if self.node_file is not None:
            options += ["--node", str(self.node_file.resolve())]
        if self.profile is not None:
            options += ["--profile", self.profile]
        for override in self.overrides:
            options += ["--set", override]
        return options
