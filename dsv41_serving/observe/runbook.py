"""The runbook as data: one section per alert, with the evidence it asks for."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from dsv41_serving.errors import InputError
from dsv41_serving.resources import data_dir

EvidenceKind = Literal["query", "status", "canary", "contract", "log"]
_SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^#{1,2} |\Z)", re.MULTILINE | re.DOTALL)
_EVIDENCE = re.compile(r"^- `(\w+)(?: (.*))?`$", re.MULTILINE)


@dataclass(frozen=True)
class Evidence:
    """One thing to look at: `argument` is a PromQL expression for query, a service for log, else empty."""

    kind: EvidenceKind
    argument: str

    def __str__(self) -> str:
        """Return it as the runbook writes it."""
        return f"{self.kind} {self.argument}".strip()


@dataclass(frozen=True)
class Section:
    """What the runbook says about one alert."""

    alert: str
    meaning: str
    evidence: tuple[Evidence, ...]
    remedy: str


def read_runbook() -> dict[str, Section]:
    """Return alert -> section. Raises InputError for a section without meaning, evidence or remedy, or with unknown evidence."""
    text = (data_dir("monitoring") / "runbook.md").read_text(encoding="utf-8")
    return {alert: _read_section(alert, body) for alert, body in _SECTION.findall(text)}


def find_section(alert: str) -> Section:
    """Return the section of `alert`; a prefix such as Dsv41 may be left out. Raises InputError, naming what is near."""
    sections = read_runbook()
    by_lower = {name.lower(): section for name, section in sections.items()}
    found = by_lower.get(alert.lower()) or by_lower.get(f"dsv41{alert.lower()}")
    if found is None:
        near = difflib.get_close_matches(alert.lower(), by_lower, n=1, cutoff=0.4)
        hint = f"did you mean {by_lower[near[0]].alert}?" if near else "`dsv41 explain --list` names all"
        raise InputError(f"there is no alert '{alert}'", where="monitoring/runbook.md", remedy=hint)
    return found


def _read_section(alert: str, body: str) -> Section:
    meaning, _, rest = body.partition("Evidence:\n")
    items = _EVIDENCE.findall(rest)
    remedy = rest.rpartition("`\n\n")[2] if items else ""
    unknown = [kind for kind, _ in items if kind not in get_args(EvidenceKind)]
    if not meaning.strip() or not items or not remedy.strip() or unknown:
        lacks = f"unknown evidence '{unknown[0]}'" if unknown else "no meaning, no evidence or no remedy"
        raise InputError(f"{alert}: {lacks}", where="monitoring/runbook.md", remedy="complete the section")
    evidence = tuple(Evidence(cast("EvidenceKind", kind), argument) for kind, argument in items)
    return Section(alert, " ".join(meaning.split()), evidence, remedy.strip())
