"""What a check found: one line for a person, one row for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Finding:
    """One check. `seen` is what was found, `remedy` what to do when it failed."""

    service: str
    check: str
    passed: bool
    seen: str
    remedy: str = ""

    def as_line(self) -> str:
        """Return the finding as one line."""
        verdict = "pass" if self.passed else "FAIL"
        line = f"{verdict}  {self.service:<9} {self.check:<12} {self.seen}"
        return f"{line}; {self.remedy}" if self.remedy and not self.passed else line


def all_passed(findings: Sequence[Finding]) -> bool:
    """Return whether there is at least one finding and none failed."""
    return bool(findings) and all(finding.passed for finding in findings)


def as_rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the findings for JSON."""
    return [asdict(finding) for finding in findings]


def as_table(findings: Sequence[Finding]) -> Table:
    """Return the findings as a table."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("service", "check", "", "seen"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        verdict = "[green]pass[/green]" if finding.passed else "[red]FAIL[/red]"
        seen = finding.seen if finding.passed or not finding.remedy else f"{finding.seen}; {finding.remedy}"
        table.add_row(finding.service, finding.check, verdict, seen)
    return table
