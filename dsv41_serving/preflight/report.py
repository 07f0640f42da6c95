"""The answers of a preflight, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.preflight.check import Check, Outcome

_STYLE = {"pass": "green", "warn": "yellow", "fail": "bold red"}
_NAME_WIDTH = 25


@dataclass(frozen=True)
class Answer:
    """One check that was asked."""

    check: str
    """FAMILY.NAME."""
    outcome: Outcome


@dataclass(frozen=True)
class Report:
    """One preflight."""

    answers: tuple[Answer, ...]
    not_applicable: tuple[str, ...]
    """Checks whose question does not arise here."""

    def count(self, verdict: str) -> int:
        """Return how many checks ended with `verdict`."""
        return sum(answer.outcome.verdict == verdict for answer in self.answers)

    @property
    def passed(self) -> bool:
        """Whether nothing failed; warnings do not count."""
        return self.count("fail") == 0

    def as_lines(self) -> list[Text]:
        """Return one line for each check and a summary."""
        lines = []
        for answer in self.answers:
            outcome = answer.outcome
            line = Text.assemble(
                (outcome.verdict, _STYLE[outcome.verdict]), f"  {answer.check:<{_NAME_WIDTH}} {outcome.seen}"
            )
            if outcome.remedy:
                line.append("; mend: ").append(outcome.remedy, "cyan")
            lines.append(line)
        return [*lines, Text(self.summary())]

    def summary(self) -> str:
        """Return the counts as one sentence."""
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in _STYLE)
        return f"{len(self.answers)} checks: {counts}; {len(self.not_applicable)} do not apply here"

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values: `passed`, `counts`, `checks` (check, verdict, seen, remedy), `not_applicable`."""
        return {
            "passed": self.passed,
            "counts": {verdict: self.count(verdict) for verdict in _STYLE},
            "checks": [
                {
                    "check": answer.check,
                    "verdict": answer.outcome.verdict,
                    "seen": answer.outcome.seen,
                    "remedy": answer.outcome.remedy,
                }
                for answer in self.answers
            ],
            "not_applicable": list(self.not_applicable),
        }


def list_checks(checks: Mapping[str, tuple[Check, ...]]) -> list[str]:
    """Return one line for each check: its name, its question and why it is asked."""
    return [
        f"{family + '.' + check.name:<{_NAME_WIDTH}} {check.asks}  ({check.why})"
        for family, members in checks.items()
        for check in members
    ]
