"""Show a start while it happens: a live table on a terminal, one line per change elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from dsv41_serving.run.record import seconds_since

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from dsv41_serving.run.record import ServiceRecord

WORTH_SAYING_S = 2.0

_STYLE = {"ready": "green", "failed": "red", "draining": "yellow", "waiting": "dim", "stopped": "dim"}


class Progress:
    """What a person watches during `up` and `down`. Feed it records; it remembers the latest of each service."""

    def __init__(self, console: Console) -> None:
        """Show on `console`; whether that is a terminal decides how."""
        self._console = console
        self._began = time.monotonic()
        self._records: dict[str, ServiceRecord] = {}
        self._shown: dict[str, tuple[str, str]] = {}
        self._live = (
            Live(console=console, get_renderable=self._table, refresh_per_second=4) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        if self._live:
            self._live.stop()

    def show(self, record: ServiceRecord) -> None:
        """Take the newest record of one service."""
        self._records[record.name] = record
        if self._live:
            return
        now = (record.phase, record.detail)
        if now != self._shown.get(record.name):
            self._shown[record.name] = now
            self._console.print(
                f"[{time.monotonic() - self._began:6.1f}s] {record.name:<9} {sentence(record)}",
                markup=False,
                highlight=False,
            )

    def _table(self) -> Table:
        table = Table(show_edge=False, pad_edge=False)
        for column in ("service", "state", "phase", "elapsed", "expected"):
            table.add_column(
                column, justify="right" if column in {"elapsed", "expected"} else "left", no_wrap=column != "phase"
            )
        for record in self._records.values():
            style = _STYLE.get(record.state, "cyan")
            phase = f"{record.phase}: {record.detail}" if record.detail else record.phase
            if record.problem:
                phase = f"{phase}: {record.problem}"
            moving = record.state in {"starting", "draining"}
            table.add_row(
                record.name,
                Text(record.state, style=style),
                # What an engine says may hold square brackets, which are no markup.
                Text("" if phase == record.state else phase),
                f"{seconds_since(record.phase_at):.0f} s" if moving else "",
                f"{record.expected_s:.0f} s" if moving and record.expected_s is not None else "",
            )
        return table


def sentence(record: ServiceRecord) -> str:
    """Return the state of a service as one phrase: 'loading weights (shard 3 of 48), usually 12 s'."""
    text = record.phase
    if record.detail:
        text += f" ({record.detail})"
    if record.problem:
        text += f": {record.problem}"
    if record.state == "starting" and record.expected_s is not None and record.expected_s >= WORTH_SAYING_S:
        text += f", usually {record.expected_s:.0f} s"
    return text
