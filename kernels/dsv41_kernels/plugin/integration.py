"""How an op stands in the engine: targets, adapters, and the state it has when nobody asks."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_kernels.op import Capability
    from dsv41_kernels.plugin.modes import Mode


Original = Callable[..., Any]
Call = inspect.BoundArguments


@dataclasses.dataclass(frozen=True)
class Default:
    """State of an op on an architecture when the environment does not name it, and the measurement or reason behind it."""

    mode: Mode
    reason: str


@dataclasses.dataclass(frozen=True)
class Hook:
    """One function of the engine that an op stands in for.

    `target` is its dotted name without the leading `sglang.`; `parameters` the names it must have, in order: anything else is
    another release. `run(original, call)` returns what the original would; `call.arguments` holds the arguments by name, defaults
    applied. `compare(original, call)` runs both, ours on copies of what is written in place, and returns the original's result and
    the relative error, None if this call had nothing to compare. `gate` marks a hook that computes nothing but opens or notes what others
    need: shadow installs it as it is. What has neither is left out in shadow.
    """

    target: str
    parameters: tuple[str, ...]
    run: Callable[[Original, Call], Any]
    compare: Callable[[Original, Call], tuple[Any, float | None]] | None = None
    gate: bool = False

    def bind(self, original: Original) -> Callable[..., Call]:
        """A function that sorts a call's arguments under the original's parameter names."""
        signature = inspect.signature(original)

        def bind(*args: Any, **kwargs: Any) -> Call:
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            return call

        return bind


@dataclasses.dataclass(frozen=True)
class Integration:
    """An op in the engine. `check` names the problem that the start-up gate runs; `tolerance` bounds the shadow error.

    `runs` names the other ops that the hooks run, each with the problem of its check. `refuses(capability)` says why the engine on such a
    GPU hands the hooks nothing that they can serve, None where it does.
    """

    op: str
    stock: str
    hooks: tuple[Hook, ...]
    default: Callable[[Capability], Default]
    check: str
    tolerance: float
    runs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refuses: Callable[[Capability], str | None] = lambda _: None
