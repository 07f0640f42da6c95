"""Results as lines, JSON and JUnit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from dsv41_serving.contract.check import Checked
    from dsv41_serving.contract.suite import Result

NAME_WIDTH = 20


def as_line(result: Result) -> str:
    """Return one line: verdict, clause, what was seen; what was expected where it was missed."""
    outcome = result.outcome
    line = f"{outcome.verdict}  {result.clause.name:<{NAME_WIDTH}} "
    if outcome.verdict == "MISS":
        return f"{line}expected {outcome.expected}; seen {outcome.seen}"
    return f"{line}{outcome.seen}"


def summary_line(done: Checked) -> str:
    """Return the last line: how many of each verdict, where, how long, at what price."""
    counts = _count(done)
    return (
        f"{counts['pass']} passed, {counts['MISS']} missed, {counts['skip']} skipped at {done.url} "
        f"in {done.seconds:.1f} s, {done.generated_tokens} tokens generated"
    )


def as_json(done: Checked) -> dict[str, Any]:
    """Return the run for JSON."""
    return {
        "url": done.url,
        "seconds": round(done.seconds, 3),
        "generated_tokens": done.generated_tokens,
        "clauses": [
            {
                "clause": result.clause.name,
                "statement": result.clause.statement,
                "verdict": result.outcome.verdict.lower(),
                "expected": result.outcome.expected,
                "seen": result.outcome.seen,
                "seconds": round(result.seconds, 3),
            }
            for result in done.results
        ],
    }


def as_junit(done: Checked) -> str:
    """Return the run as a JUnit document, one test case per clause."""
    counts = _count(done)
    suite = ET.Element(
        "testsuite",
        name=f"chat contract at {done.url}",
        tests=str(len(done.results)),
        failures=str(counts["MISS"]),
        skipped=str(counts["skip"]),
        time=f"{done.seconds:.3f}",
    )
    for result in done.results:
        case = ET.SubElement(
            suite, "testcase", classname="contract", name=result.clause.name, time=f"{result.seconds:.3f}"
        )
        if result.outcome.verdict == "MISS":
            failure = ET.SubElement(case, "failure", message=_printable(f"expected {result.outcome.expected}"))
            failure.text = _printable(
                f"{result.clause.statement}\nexpected {result.outcome.expected}\nseen {result.outcome.seen}"
            )
        elif result.outcome.verdict == "skip":
            ET.SubElement(case, "skipped", message=_printable(result.outcome.seen))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Return `text` without the control characters that XML cannot hold."""
    return "".join(char if char in "\n\t" or char >= " " else "\N{REPLACEMENT CHARACTER}" for char in text)


def _count(done: Checked) -> dict[str, int]:
    verdicts = [result.outcome.verdict for result in done.results]
    return {verdict: verdicts.count(verdict) for verdict in ("pass", "MISS", "skip")}
