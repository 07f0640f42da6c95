"""What a person watches during a start."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dsv41_serving.run.progress import Progress, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.run.record import ServiceRecord

    Make = Callable[..., ServiceRecord]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"phase": "waiting", "detail": "for prefill and decode"}, "waiting (for prefill and decode)"),
        (
            {"state": "starting", "phase": "loading weights", "detail": "shard 3 of 48", "expected_s": 12.4},
            "loading weights (shard 3 of 48), usually 12 s",
        ),
        ({"state": "starting", "phase": "gate", "expected_s": 1.9}, "gate"),
        ({"state": "ready", "phase": "ready", "expected_s": 12.4}, "ready"),
        (
            {"state": "failed", "phase": "loading weights", "problem": "ended with status 1"},
            "loading weights: ended with status 1",
        ),
        ({"state": "draining", "phase": "draining", "detail": "2 running"}, "draining (2 running)"),
    ],
)
def test_a_state_is_one_phrase(make_record: Make, changes: dict[str, object], text: str) -> None:
    """What, how far, how long it usually takes; too short a time is not worth a word."""
    assert sentence(make_record(**changes)) == text


def test_without_a_terminal_every_change_is_one_line(make_record: Make) -> None:
    """A log keeps no table; a record that says the same again says nothing."""
    stream = io.StringIO()
    with Progress(Console(file=stream, width=120)) as progress:
        for changes in (
            {"phase": "importing"},
            {"phase": "importing"},
            {"phase": "loading weights", "detail": "shard 1 of 2"},
            {"phase": "loading weights", "detail": "shard 2 of 2"},
        ):
            progress.show(make_record(state="starting", **changes))
        progress.show(make_record(name="decode", state="starting", phase="importing"))
    lines = [re.sub(r"^\[ *\d+\.\ds\] ", "", line) for line in stream.getvalue().splitlines()]
    assert lines == [
        "prefill   importing",
        "prefill   loading weights (shard 1 of 2)",
        "prefill   loading weights (shard 2 of 2)",
        "decode    importing",
    ]


def test_a_terminal_shows_a_table_that_ends_with_the_last_state(make_record: Make) -> None:
    """One row a service; elapsed and expected only while something moves."""
    stream = io.StringIO()
    with Progress(Console(file=stream, width=120, force_terminal=True, color_system=None)) as progress:
        progress.show(make_record(state="starting", phase="importing", expected_s=7.0))
        progress.show(make_record(state="ready", phase="ready"))
        progress.show(make_record(name="decode", state="starting", phase="loading weights", expected_s=12.0))
    last = stream.getvalue().rsplit("service", 1)[1]
    rows = [" ".join(line.replace("│", " ").split()) for line in last.splitlines()]
    assert "prefill ready" in rows
    assert any(re.fullmatch(r"decode starting loading weights \d+ s 12 s", row) for row in rows)


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_what_an_engine_says_as_it_says_it(make_record: Make, width: int) -> None:
    """Square brackets are no markup, and a failed start keeps its reason; both fit a terminal of 80 columns."""
    stream = io.StringIO()
    with Progress(Console(file=stream, width=width, force_terminal=True, color_system=None)) as progress:
        progress.show(make_record(state="starting", phase="loading weights", detail="[1/2] experts"))
        progress.show(make_record(name="decode", state="failed", phase="gate", problem="port 30200 belongs to pid 7"))
    last = stream.getvalue().rsplit("service", 1)[1]
    assert "loading weights: [1/2] experts" in last
    assert "gate: port 30200 belongs to pid 7" in last
    assert max(map(len, last.splitlines())) <= width
