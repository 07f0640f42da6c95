"""Launch configurations in turn and measure each: A B B A A B B A, so that a machine that drifts favours neither."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from dsv41_serving.errors import GateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41_serving.bench.result import Launch

_START_S, _STOP_S = 7200.0, 600.0


def order_launches(configurations: int, launches: int) -> list[int]:
    """Return which configuration runs when: every round in the opposite direction of the one before."""
    forward = list(range(configurations))
    return [index for number in range(launches) for index in (forward if number % 2 == 0 else forward[::-1])]


def launch_in_turn(
    arguments: Sequence[Sequence[str]],
    launches: int,
    measure: Callable[[int], Launch],
    keep: Callable[[int, Sequence[Launch]], None],
    say: Callable[[str], None],
) -> list[list[Launch]]:
    """Start, measure and stop each configuration `launches` times; return the launches of each.

    `arguments` are the options that make `dsv41` mean a configuration; `measure` measures the one with that index while
    it runs, and `keep` stores all launches of it so far, so that a later failure loses none. Whatever happens, what was
    started is stopped. Raises GateError when a start fails.
    """
    kept: list[list[Launch]] = [[] for _ in arguments]
    order = order_launches(len(arguments), launches)
    for number, index in enumerate(order, 1):
        say(f"launch {number} of {len(order)}: {' '.join(arguments[index])}")
        # Outside: a start that fails has stopped what it started, and one that is refused found what somebody else started.
        _call(arguments[index], ["up", "--detach"], _START_S)
        try:
            kept[index].append(measure(index))
            keep(index, kept[index])
        finally:
            _call(arguments[index], ["down"], _STOP_S)
    return kept


def _call(options: Sequence[str], verb: Sequence[str], timeout_s: float) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dsv41_serving", *options, *verb],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise GateError(
            f"`dsv41 {' '.join(verb)}` ended with {done.returncode}: {lines[-1] if lines else 'it printed nothing'}",
            where=" ".join(options),
            remedy="run it by hand",
        )
