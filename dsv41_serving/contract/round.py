"""What one look at a deployment found: clauses kept or missed, and what drifted since the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.fingerprint import digest
from dsv41_serving.contract.report import as_line
from dsv41_serving.contract.suite import all_kept

if TYPE_CHECKING:
    from dsv41_serving.contract.fingerprint import Drift, Fingerprint
    from dsv41_serving.contract.suite import Result


@dataclass(frozen=True)
class Round:
    """One look at the deployment."""

    finished_at: float
    """Unix seconds."""
    seconds: float
    generated_tokens: int
    results: tuple[Result, ...]
    fingerprint: Fingerprint
    drift: tuple[Drift, ...]

    @property
    def kept(self) -> bool:
        """Whether no clause was missed and nothing drifted."""
        return all_kept(self.results) and not self.drift

    def as_lines(self) -> list[str]:
        """Return what a person should read: one line when all is well, else one per miss and per drift."""
        misses = [as_line(result) for result in self.results if result.outcome.verdict == "MISS"]
        lines = misses + [f"DRIFT {drift}" for drift in self.drift]
        counted = f"{len(self.results) - len(misses)} of {len(self.results)} clauses kept, fingerprint {digest(self.fingerprint)}"
        return [*lines, f"{counted}, {self.generated_tokens} tokens, {self.seconds:.1f} s"]

    def as_json(self) -> dict[str, Any]:
        """Return the round for JSON."""
        return {
            "finished_at": self.finished_at,
            "seconds": round(self.seconds, 3),
            "generated_tokens": self.generated_tokens,
            "kept": self.kept,
            "clauses": {result.clause.name: result.outcome.verdict.lower() for result in self.results},
            "misses": [as_line(result) for result in self.results if result.outcome.verdict == "MISS"],
            "drift": [str(drift) for drift in self.drift],
            "fingerprint": self.fingerprint,
        }
