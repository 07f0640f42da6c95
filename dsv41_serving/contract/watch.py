"""`dsv41 contract watch`: a cheap part of the suite again and again, and what is served compared with what was.

The first round that keeps every clause becomes the baseline. State lies in `state_dir/contract`: the baseline, the last
round, and a Prometheus text file.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.contract.deployment import of_plan, open_client
from dsv41_serving.contract.fingerprint import UNKNOWN, compare_fingerprints, take_fingerprint
from dsv41_serving.contract.page import write_page
from dsv41_serving.contract.round import Round
from dsv41_serving.contract.suite import all_kept, choose, run_clauses

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.check.access import Access
    from dsv41_serving.contract.deployment import Deployment
    from dsv41_serving.contract.fingerprint import Fingerprint
    from dsv41_serving.plan.model import Plan

# Under 200 generated tokens together; encoding, engines-agree and the errors generate none.
WATCHED = (
    "model-listed",
    "model-answers",
    "thinking-default",
    "thinking-off",
    "encoding",
    "temperature-default",
    "tools-named",
    "error-model",
    "engines-agree",
)


class Watch:
    """The memory of the watch on one node."""

    def __init__(self, state_dir: str | Path) -> None:
        """Use `state_dir/contract`; it is made by the first write."""
        self.directory = Path(state_dir) / "contract"

    @property
    def page(self) -> Path:
        """The Prometheus text file."""
        return self.directory / "contract.prom"

    def read_baseline(self) -> Fingerprint:
        """Return the accepted facts; none before the first good round, or when the file is damaged."""
        try:
            found = json.loads((self.directory / "baseline.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(item): str(value) for item, value in found.items()} if isinstance(found, dict) else {}

    async def look(self, deployment: Deployment, served_directory: Path | None, *, accept: bool = False) -> Round:
        """Return one round, compared with the baseline and stored; `accept` makes what is served now the baseline."""
        start, before = time.monotonic(), deployment.generated_tokens
        results = await run_clauses(deployment, choose(WATCHED))
        fingerprint = await take_fingerprint(deployment, served_directory)
        baseline = self.read_baseline()
        whole = UNKNOWN not in fingerprint.values()
        if whole and (accept or (not baseline and all_kept(results))):
            self._write("baseline.json", json.dumps(fingerprint, indent=1, ensure_ascii=False))
            baseline = fingerprint
        done = Round(
            finished_at=time.time(),
            seconds=time.monotonic() - start,
            generated_tokens=deployment.generated_tokens - before,
            results=tuple(results),
            fingerprint=fingerprint,
            drift=tuple(compare_fingerprints(baseline, fingerprint)) if baseline else (),
        )
        self._write("round.json", json.dumps(done.as_json(), indent=1, ensure_ascii=False))
        write_page(done, self.page)
        return done

    def _write(self, name: str, text: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".{name}.{os.getpid()}"
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.directory / name)


async def watch_contract(
    plan: Plan, *, access: Access, interval_s: float, once: bool, accept: bool, on_round: Callable[[Round], None]
) -> Round:
    """Look at the router of `plan` every `interval_s` seconds, or once; return the last round."""
    watch = Watch(plan.state_dir)
    async with open_client(access) as client:
        deployment = of_plan(plan, client)
        if deployment is None:
            raise RuntimeError("a plan always has a router")
        while True:
            start = time.monotonic()
            done = await watch.look(deployment, Path(plan.model.path), accept=accept)
            on_round(done)
            if once:
                return done
            accept = False
            await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - start)))
