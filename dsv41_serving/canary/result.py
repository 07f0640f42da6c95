"""How the last canary run went, as one file under `state_dir/canary`, with counts over all runs."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Step(_Value):
    """One step of the conversation. `problem` is empty when it passed."""

    name: str
    seen: str
    problem: str = ""

    def as_line(self) -> str:
        """Return the step as one line."""
        return (
            f"FAIL  {self.name:<9} {self.problem}; {self.seen}" if self.problem else f"pass  {self.name:<9} {self.seen}"
        )


class CanaryRun(_Value):
    """One run, and how many there were."""

    finished_at: float
    """Unix seconds."""
    seconds: float
    first_token_s: float | None
    """Seconds until the first token of the stream; None when none came."""
    generated_tokens: int
    steps: tuple[Step, ...]
    runs: int = 1
    failures: int = 0

    @property
    def passed(self) -> bool:
        """Whether there was a conversation and no step of it failed."""
        return bool(self.steps) and not any(step.problem for step in self.steps)

    def as_lines(self) -> list[str]:
        """Return one line per step, and one with the sum."""
        first = "no token" if self.first_token_s is None else f"first token after {self.first_token_s:.2f} s"
        verdict = "passed" if self.passed else "FAILED"
        summary = f"{verdict} in {self.seconds:.1f} s, {self.generated_tokens} tokens, {first}"
        return [*(step.as_line() for step in self.steps), f"{summary}; run {self.runs}, {self.failures} failed"]


class CanaryResults:
    """The memory of the canary on one node."""

    def __init__(self, state_dir: str | Path) -> None:
        """Use `state_dir/canary`; it is made by the first write."""
        self._path = Path(state_dir) / "canary" / "run.json"

    def read(self) -> CanaryRun | None:
        """Return the last run; None before the first, or when the file is damaged."""
        try:
            return CanaryRun.model_validate_json(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def add(self, run: CanaryRun) -> CanaryRun:
        """Store `run` as the last one and return it with the counts of all runs."""
        before = self.read()
        runs, failures = (before.runs, before.failures) if before else (0, 0)
        counted = run.model_copy(update={"runs": runs + 1, "failures": failures + (not run.passed)})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".run.{os.getpid()}")
        temporary.write_text(counted.model_dump_json(indent=1) + "\n", encoding="utf-8")
        temporary.replace(self._path)
        return counted
