"""Health of the GPUs, from NVML: errors the driver reports, rows it remapped, what holds the clocks down, what they carry."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pynvml

from dsv41_serving.exporter import metrics
from dsv41_serving.exporter.gpu_activity import Activity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dsv41_serving.exporter.metrics import Family, Metric
    from dsv41_serving.plan.model import Plan

_EVENT_WAIT_MS = 1000
_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
_THROTTLE = {
    "power": ("nvmlClocksThrottleReasonSwPowerCap", "nvmlClocksThrottleReasonHwPowerBrakeSlowdown"),
    "thermal": ("nvmlClocksThrottleReasonSwThermalSlowdown", "nvmlClocksThrottleReasonHwThermalSlowdown"),
    "hardware": ("nvmlClocksThrottleReasonHwSlowdown",),
    "sync": ("nvmlClocksThrottleReasonSyncBoost",),
}


class GpuSource:
    """Every GPU of the machine. Without a driver it has nothing to say, and that is no failure."""

    name = "gpu"

    def __init__(self, services: Mapping[str, str] | None = None, nvml: Any = pynvml) -> None:
        """Use the library `nvml`; Xids are counted from now on, in a thread of its own.

        `services` names the engine on each GPU, by the GPU's index.
        """
        self._nvml = nvml
        self._services = services or {}
        self._activity: dict[str, Activity] = {}
        self._xids: Counter[tuple[str, str]] = Counter()
        self._handles: dict[str, Any] = {}
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # fallen off the bus: preflight and the gate say so
                self._handles[str(index)] = nvml.nvmlDeviceGetHandleByIndex(index)
        for gpu, handle in self._handles.items():
            with suppress(nvml.NVMLError):  # older than Hopper
                self._activity[gpu] = Activity(nvml, handle)
        if self._handles:
            threading.Thread(target=self._follow_xids, name="exporter-xid", daemon=True).start()

    def read(self) -> Iterable[Family]:
        """Return the families of all GPUs; what a GPU or driver does not tell is left out."""
        if not self._handles:
            return
        families: dict[Metric, Family] = {metric: metric.family() for metric in _METRICS}
        for gpu, handle in self._handles.items():
            for metric, labels, value in (*self._look(gpu, handle), *self._look_at_work(gpu)):
                families[metric].add_metric([gpu, *labels], value)
        for (gpu, xid), count in sorted(self._xids.items()):
            families[metrics.GPU_XID].add_metric([gpu, xid], count)
        yield from families.values()

    def _look(self, gpu: str, handle: Any) -> Iterable[tuple[Metric, list[str], float]]:
        nvml = self._nvml
        name, uuid = self._ask(nvml.nvmlDeviceGetName, handle), self._ask(nvml.nvmlDeviceGetUUID, handle)
        pci = self._ask(nvml.nvmlDeviceGetPciInfo, handle)
        yield metrics.GPU_INFO, [str(name), str(uuid), str(getattr(pci, "busId", "")), self._services.get(gpu, "")], 1.0
        for kind, error_type in (
            ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ):
            count = self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, error_type, nvml.NVML_VOLATILE_ECC)
            if count is not None:
                yield metrics.GPU_ECC, [kind], count
        remapped = self._ask(nvml.nvmlDeviceGetRemappedRows, handle)
        if remapped is not None:
            corrected, uncorrected, pending, failed = remapped
            yield metrics.GPU_REMAPPED, ["corrected"], corrected
            yield metrics.GPU_REMAPPED, ["uncorrected"], uncorrected
            yield metrics.GPU_REMAP_PENDING, [], float(bool(pending))
            yield metrics.GPU_REMAP_FAILED, [], float(bool(failed))
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if reasons is not None:
            for reason, names in _THROTTLE.items():
                mask = sum(getattr(nvml, each) for each in names)
                yield metrics.GPU_THROTTLED, [reason], float(bool(reasons & mask))
        yield from self._gauges(handle)
        yield from self._traffic(handle)

    def _gauges(self, handle: Any) -> Iterable[tuple[Metric, list[str], float]]:
        nvml = self._nvml
        simple: tuple[tuple[Metric, float, Callable[..., Any], tuple[Any, ...]], ...] = (
            (metrics.GPU_TEMPERATURE, 1.0, nvml.nvmlDeviceGetTemperature, (nvml.NVML_TEMPERATURE_GPU,)),
            (metrics.GPU_POWER, 1e-3, nvml.nvmlDeviceGetPowerUsage, ()),
            (metrics.GPU_SM_CLOCK, 1e6, nvml.nvmlDeviceGetClockInfo, (nvml.NVML_CLOCK_SM,)),
            (metrics.GPU_PCIE_REPLAYS, 1.0, nvml.nvmlDeviceGetPcieReplayCounter, ()),
        )
        for metric, factor, question, arguments in simple:
            value = self._ask(question, handle, *arguments)
            if value is not None:
                yield metric, [], value * factor
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            yield metrics.GPU_MEMORY_USED, [], memory.used
            yield metrics.GPU_MEMORY_TOTAL, [], memory.total
        utilisation = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        if utilisation is not None:
            yield metrics.GPU_UTILISATION, [], utilisation.gpu / 100

    def _traffic(self, handle: Any) -> Iterable[tuple[Metric, list[str], float]]:
        """Yield the bytes over the links. Of NVLinks the driver adds all up itself and counts KiB; of PCIe it counts bytes."""
        nvml = self._nvml
        fields = {
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS): (metrics.GPU_NVLINK_BYTES, "transmit", _KIB),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS): (metrics.GPU_NVLINK_BYTES, "receive", _KIB),
            (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0): (metrics.GPU_PCIE_BYTES, "transmit", 1),
            (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0): (metrics.GPU_PCIE_BYTES, "receive", 1),
        }
        values = self._ask(nvml.nvmlDeviceGetFieldValues, handle, list(fields))
        for value, (metric, direction, factor) in zip(values or (), fields.values(), strict=False):
            if value.nvmlReturn == nvml.NVML_SUCCESS:
                yield metric, [direction], _number(nvml, value) * factor

    def _look_at_work(self, gpu: str) -> Iterable[tuple[Metric, list[str], float]]:
        nvml = self._nvml
        wanted = {
            metrics.GPU_BANDWIDTH.name: nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
            metrics.GPU_TENSOR.name: nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        }
        activity = self._activity.get(gpu)
        shares = self._ask(activity.look, wanted) if activity is not None else None
        for name, share in (shares or {}).items():
            yield metrics.BY_NAME[name], [], share

    def _follow_xids(self) -> None:
        """Count Xids as the driver reports them; which ones matter is the alert rules' business."""
        nvml = self._nvml
        by_uuid = {str(self._ask(nvml.nvmlDeviceGetUUID, handle)): gpu for gpu, handle in self._handles.items()}
        events = nvml.nvmlEventSetCreate()
        for handle in self._handles.values():
            with suppress(nvml.NVMLError):  # a virtual GPU reports none
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(events, _EVENT_WAIT_MS)
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError:
                return  # the driver went away; the other numbers will say so
            gpu = by_uuid.get(str(self._ask(nvml.nvmlDeviceGetUUID, event.device)), "unknown")
            self._xids[gpu, str(event.eventData)] += 1

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return NVML's answer, or None where this GPU or driver has none."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def services_by_gpu(plan: Plan) -> dict[str, str]:
    """Return GPU index -> engine that `plan` puts there."""
    return {str(gpu): engine.name for engine in plan.engines for gpu in engine.placement.gpus}


def _number(nvml: Any, value: Any) -> int:
    """Return the number in a field's value: how wide it is differs by field and driver."""
    if value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(value.value.uiVal)
    return int(value.value.ullVal)


_METRICS = (
    metrics.GPU_INFO,
    metrics.GPU_XID,
    metrics.GPU_ECC,
    metrics.GPU_REMAPPED,
    metrics.GPU_REMAP_PENDING,
    metrics.GPU_REMAP_FAILED,
    metrics.GPU_THROTTLED,
    metrics.GPU_TEMPERATURE,
    metrics.GPU_POWER,
    metrics.GPU_SM_CLOCK,
    metrics.GPU_PCIE_REPLAYS,
    metrics.GPU_MEMORY_USED,
    metrics.GPU_MEMORY_TOTAL,
    metrics.GPU_UTILISATION,
    metrics.GPU_NVLINK_BYTES,
    metrics.GPU_PCIE_BYTES,
    metrics.GPU_BANDWIDTH,
    metrics.GPU_TENSOR,
)
