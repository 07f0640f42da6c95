"""The page: sources side by side, each timed and guarded, slow ones read in the background."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from dsv41_serving.exporter.metrics import COLLECT_ERRORS, COLLECT_SECONDS, Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_log = logging.getLogger(__name__)


class Source(Protocol):
    """One thing to look at. `name` labels its own cost on the page."""

    name: str

    def read(self) -> Iterable[Family]:
        """Return its families as of now. May raise: the page then goes without them and counts the failure."""


class Page(Collector):
    """Everything the exporter serves."""

    def __init__(self, sources: Sequence[Source]) -> None:
        """Serve `sources`."""
        self._sources = sources
        self._failures = dict.fromkeys((source.name for source in sources), 0)

    def collect(self) -> Iterable[Family]:
        """Return all families, and how long each source took."""
        seconds, failures = COLLECT_SECONDS.family(), COLLECT_ERRORS.family()
        for source in self._sources:
            start = time.perf_counter()
            try:
                # A list first: half of a source is worse than none.
                yield from list(source.read())
            except Exception:  # noqa: BLE001 - whatever a source runs into must not take the other numbers away
                self._failures[source.name] += 1
                _log.warning("source %s failed", source.name, exc_info=True)
            seconds.add_metric([source.name], time.perf_counter() - start)
        for name, count in self._failures.items():
            failures.add_metric([name], count)
        yield from (seconds, failures)

    def registry(self) -> CollectorRegistry:
        """Return a registry of this page alone."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry


UNKNOWN_EVERY_S = 10.0
"""How soon a slow source is asked again that had nothing to say: engines that are about to start."""


class Background:
    """A source that is too slow or too costly for a scrape: read every `every_s` seconds in a thread of its own.

    The page serves the last good reading; a failure is raised into the next scrape, where it is counted.
    """

    def __init__(self, source: Source, every_s: float) -> None:
        """Start reading `source`; the thread ends with the process, or with `stop`."""
        self.name = source.name
        self._source = source
        self._every_s = every_s
        self._families: list[Family] = []
        self._problem: Exception | None = None
        self._stop = threading.Event()
        threading.Thread(target=self._run, name=f"exporter-{source.name}", daemon=True).start()

    def read(self) -> Iterable[Family]:
        """Return the last reading. Raises what the last attempt raised."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        return self._families

    def stop(self) -> None:
        """End the thread at its next pause."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._families = list(self._source.read())
            except Exception as problem:  # noqa: BLE001 - kept for the scrape to count
                self._problem = problem
            known = any(family.samples for family in self._families)
            self._stop.wait(self._every_s if known else min(self._every_s, UNKNOWN_EVERY_S))
