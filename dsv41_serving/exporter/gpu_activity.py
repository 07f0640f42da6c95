"""How much of its memory bandwidth and of its tensor cores a GPU really uses, from NVML's performance counters (Hopper and newer).

Measured by the hardware, not estimated from a model's shape: the share of the time between two samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_PERCENT = 100.0


class Activity:
    """The counters of one GPU over the time since the last look."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Reserve two samples of `handle`. Raises NVMLError where the GPU or the driver has no such counters."""
        self._nvml = nvml
        self._handle = handle
        self._before: Any = None
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._spare, self._other = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()

    def look(self, wanted: Mapping[str, int]) -> dict[str, float]:
        """Return name -> share (0 to 1) of the metrics `wanted` (name -> NVML_GPM_METRIC_*) since the last look.

        Empty at the first look; a metric that this GPU does not count is left out. Raises NVMLError.
        """
        nvml = self._nvml
        now = self._spare
        nvml.nvmlGpmSampleGet(self._handle, now)
        before, self._before = self._before, now
        self._spare = self._other if before is None else before
        if before is None:
            return {}
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(wanted)
        asked.sample1, asked.sample2 = before, now
        for place, metric in enumerate(wanted.values()):
            asked.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(asked)
        return {
            name: asked.metrics[place].value / _PERCENT
            for place, name in enumerate(wanted)
            if asked.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
        }
