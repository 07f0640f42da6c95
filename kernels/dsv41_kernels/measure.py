"""Device timing: cold L2, rotating inputs, events around a CUDA graph, and the roofline of the GPU at hand."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FLUSH_BYTES = 256 * 2**20  # several times the L2 of any current GPU (H200: 60 MB, sm_120: 128 MB)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Device time of one call in microseconds: median, 20th and 80th percentile of `samples` runs.

    `mode` is `graph` (replayed CUDA graph, as decode runs) or `eager` (launched by Python; for paths that synchronise).
    """

    median_us: float
    p20_us: float
    p80_us: float
    samples: int
    mode: str


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Ceilings of this GPU, measured in this process."""

    bandwidth: float
    """Device-to-device copy, bytes read plus bytes written per second."""
    matmul: float
    """Dense bfloat16 product on random data, floating-point operations per second."""
    floor_us: float
    """What the timing itself shows for a graph of one trivial kernel."""

    def bound_us(self, moved: float, flops: float) -> float:
        """Least time for `moved` bytes and `flops` operations, microseconds."""
        return max(moved / self.bandwidth, flops / self.matmul) * 1e6


def _capture(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replay of a CUDA graph of `run`; three calls on a side stream warm compilation and allocation."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def time_device(runs: Sequence[Callable[[], Any]], *, capturable: bool, samples: int = 60) -> Timing:
    """Time `runs` (the same work on different inputs, taken in turn) with L2 flushed before each sample."""
    calls = [_capture(run) for run in runs] if capturable else list(runs)
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for call in calls:
        call()
    events = []
    for i in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        flush.zero_()
        start.record()
        calls[i % len(calls)]()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) * 1e3 for start, end in events)
    fifths = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), fifths[0], fifths[3], samples, "graph" if capturable else "eager")


def measure_roofline() -> Roofline:
    """Measure the ceilings: a 2 GiB copy, an 8192-cubed bfloat16 product and an almost empty graph."""
    source = torch.randint(0, 127, (2**29,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    # An addition, because a captured copy becomes a job for the copy engine, which is slower than a kernel.
    copy = time_device([functools.partial(torch.add, source, 1, out=target)], capturable=True, samples=20)
    moved = 2 * source.numel() * source.element_size()
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = time_device([lambda: torch.mm(a, b)], capturable=True, samples=20)
    small = torch.zeros(32, device="cuda")
    floor = time_device([lambda: small.add_(1)], capturable=True)
    return Roofline(moved / copy.median_us * 1e6, 2 * 8192**3 / product.median_us * 1e6, floor.median_us)
