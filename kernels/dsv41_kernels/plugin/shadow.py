"""Shadow mode: run ours beside the engine's path on a sample of calls, and export the error as metrics."""

from __future__ import annotations

import itertools
import math
import os
from typing import TYPE_CHECKING, Any

import torch
from prometheus_client import Counter, Gauge

from dsv41_kernels.plugin.modes import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_kernels.plugin.integration import Hook, Integration, Original

VARIABLE = "DSV41_KERNELS_SHADOW_EVERY"
_DEFAULT_EVERY = 100

CHECKS = Counter("dsv41_kernel_shadow_checks", "Calls on which an op was compared with the engine's path", ["op"])
EXCEEDED = Counter("dsv41_kernel_shadow_exceeded", "Compared calls whose error was above the op's tolerance", ["op"])
ERROR = Gauge(
    "dsv41_kernel_shadow_max_relative_error",
    "Largest relative error of an op against the engine's path since start; selections: 1 is what rounding explains",
    ["op"],
    multiprocess_mode="max",
)


def sample_every() -> int:
    """One call in this many is compared. Raises PluginError for anything but a positive integer."""
    text = os.environ.get(VARIABLE, str(_DEFAULT_EVERY))
    if not text.isdecimal() or int(text) == 0:
        raise PluginError(f"{VARIABLE}={text!r} is not a positive integer; leave it out for {_DEFAULT_EVERY}")
    return int(text)


def wrap(integration: Integration, hook: Hook, original: Original, every: int) -> Callable[..., Any]:
    """An AROUND hook that returns the engine's result and compares ours on every `every`-th call.

    A comparison synchronises with the device, so calls inside a graph capture are never compared: shadow a decode op with CUDA
    graphs disabled.
    """
    compare, bind = hook.compare, hook.bind(original)
    if compare is None:
        raise PluginError(f"{integration.op}: {hook.target} only switches a gate and cannot be shadowed")
    calls, worst = itertools.count(), 0.0

    def shadowed(original: Original, *args: Any, **kwargs: Any) -> Any:
        nonlocal worst
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing or next(calls) % every:
            return original(*args, **kwargs)
        result, error = compare(original, bind(*args, **kwargs))
        if error is None:
            return result
        CHECKS.labels(integration.op).inc()
        # A NaN compares false with everything: it counts as exceeded.
        if not error <= integration.tolerance:
            EXCEEDED.labels(integration.op).inc()
        worst = math.inf if math.isnan(error) else max(worst, error)
        ERROR.labels(integration.op).set(worst)
        return result

    return shadowed
