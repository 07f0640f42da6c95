"""The GPU source against a driver's library made of answers: numbers in base units, and silence where a GPU has none."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv41_serving.exporter import metrics
from dsv41_serving.exporter.gpu import GpuSource

FIELDS = {
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 4,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 6,
    pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: 10,
    pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: 20,
}
FIELD_TYPES = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,) * 3 + (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,)
ACTIVITY = {
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: (pynvml.NVML_SUCCESS, 62.5),
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: (pynvml.NVML_SUCCESS, 25.0),
}


class FakeNvml:
    """NVML with one GPU; constants and errors are the real ones, `answers` overrides functions by name."""

    def __init__(self, **answers: Any) -> None:
        self._xid_told = threading.Event()
        self._answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlDeviceGetUUID": lambda _: "GPU-1",
            "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00000000:1B:00.0"),
            "nvmlDeviceGetTotalEccErrors": lambda _handle, kind, _counter: 3 + kind,
            "nvmlDeviceGetRemappedRows": lambda _: (2, 1, 1, 0),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: (
                pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
            ),
            "nvmlDeviceGetTemperature": lambda *_: 61,
            "nvmlDeviceGetPowerUsage": lambda _: 512_000,
            "nvmlDeviceGetClockInfo": lambda *_: 1980,
            "nvmlDeviceGetPcieReplayCounter": lambda _: 7,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=5, total=10),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=25),
            "nvmlDeviceGetFieldValues": lambda _handle, fields: [
                SimpleNamespace(
                    nvmlReturn=0, valueType=kind, value=SimpleNamespace(ullVal=FIELDS[field], uiVal=FIELDS[field] + 1)
                )
                for (field, _), kind in zip(fields, FIELD_TYPES, strict=True)
            ],
            "nvmlGpmQueryDeviceSupport": lambda _: SimpleNamespace(isSupportedDevice=1),
            "nvmlGpmSampleAlloc": pynvml.c_nvmlGpmSample_t,
            "nvmlGpmSampleGet": lambda _handle, sample: sample,
            "nvmlGpmMetricsGet": self._measure,
            "nvmlEventSetCreate": lambda: "events",
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": self._wait,
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        return self._answers[name] if name in self._answers else getattr(pynvml, name)

    def _measure(self, asked: Any) -> Any:
        """Answer as the driver does: each metric at its place, in per cent, or with an error of its own."""
        assert (asked.version, asked.numMetrics) == (1, 2)
        for place in range(asked.numMetrics):
            metric = asked.metrics[place]
            metric.nvmlReturn, metric.value = ACTIVITY[metric.metricId]
        return asked

    def _wait(self, *_: object) -> Any:
        """Tell one Xid, then lose the driver."""
        if self._xid_told.is_set():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        self._xid_told.set()
        return SimpleNamespace(device="handle 0", eventData=79)


def values_of(source: GpuSource) -> dict[str, float]:
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sample.labels.items())}}}": sample.value
        for family in source.read()
        for sample in family.samples
    }


def refuse(*_: object) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_gpu_tells_its_health_in_base_units() -> None:
    source = GpuSource({"0": "decode"}, FakeNvml())
    values = values_of(source)
    assert values["dsv41_gpu_info{gpu=0,name=NVIDIA H200,uuid=GPU-1,pci=00000000:1B:00.0,service=decode}"] == 1
    assert values["dsv41_gpu_ecc_errors_total{gpu=0,kind=corrected}"] == 3 + pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    assert values["dsv41_gpu_ecc_errors_total{gpu=0,kind=uncorrected}"] == 3 + pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    assert values["dsv41_gpu_remapped_rows{gpu=0,cause=corrected}"] == 2
    assert values["dsv41_gpu_remapped_rows{gpu=0,cause=uncorrected}"] == 1
    assert (values["dsv41_gpu_remap_pending{gpu=0}"], values["dsv41_gpu_remap_failed{gpu=0}"]) == (1, 0)
    assert values["dsv41_gpu_throttled{gpu=0,reason=power}"] == 1
    assert values["dsv41_gpu_throttled{gpu=0,reason=thermal}"] == 1
    assert values["dsv41_gpu_throttled{gpu=0,reason=sync}"] == 0
    assert values["dsv41_gpu_power_watts{gpu=0}"] == 512
    assert values["dsv41_gpu_sm_clock_hertz{gpu=0}"] == 1.98e9
    assert values["dsv41_gpu_utilization_ratio{gpu=0}"] == 0.25
    assert values["dsv41_gpu_nvlink_bytes_total{gpu=0,direction=transmit}"] == 4 * 1024
    assert values["dsv41_gpu_nvlink_bytes_total{gpu=0,direction=receive}"] == 6 * 1024
    assert values["dsv41_gpu_pcie_bytes_total{gpu=0,direction=transmit}"] == 10
    assert values["dsv41_gpu_pcie_bytes_total{gpu=0,direction=receive}"] == 21  # the narrow half of the union


def test_work_is_what_happened_between_two_looks() -> None:
    source = GpuSource(nvml=FakeNvml())
    assert "dsv41_gpu_tensor_active_ratio{gpu=0}" not in values_of(source)
    values = values_of(source)
    assert values["dsv41_gpu_memory_bandwidth_ratio{gpu=0}"] == 0.625
    assert values["dsv41_gpu_tensor_active_ratio{gpu=0}"] == 0.25


def test_the_later_sample_of_a_look_is_the_earlier_one_of_the_next() -> None:
    addresses = iter((0x1000, 0x2000))
    pairs: list[tuple[int | None, int | None]] = []

    def measure(asked: Any) -> None:
        pairs.append(tuple(ctypes.cast(each, ctypes.c_void_p).value for each in (asked.sample1, asked.sample2)))

    source = GpuSource(
        nvml=FakeNvml(
            nvmlGpmSampleAlloc=lambda: ctypes.cast(next(addresses), pynvml.c_nvmlGpmSample_t),
            nvmlGpmMetricsGet=measure,
        )
    )
    for _ in range(3):
        values_of(source)
    assert pairs == [(0x1000, 0x2000), (0x2000, 0x1000)]


def test_an_older_gpu_has_no_such_counters() -> None:
    values = values_of(
        GpuSource(nvml=FakeNvml(nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=0)))
    )
    assert values["dsv41_gpu_temperature_celsius{gpu=0}"] == 61
    assert not any(name.startswith("dsv41_gpu_tensor") for name in values)


def test_an_xid_is_counted_by_its_number() -> None:
    source = GpuSource(nvml=FakeNvml())
    while not source._xids:
        pass
    assert values_of(source)["dsv41_gpu_xid_errors_total{gpu=0,xid=79}"] == 1


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    source = GpuSource(
        nvml=FakeNvml(nvmlDeviceGetRemappedRows=refuse, nvmlDeviceGetFieldValues=refuse, nvmlDeviceGetPowerUsage=refuse)
    )
    values = values_of(source)
    assert not any(name.startswith(("dsv41_gpu_remap", "dsv41_gpu_nvlink", "dsv41_gpu_power")) for name in values)
    assert values["dsv41_gpu_temperature_celsius{gpu=0}"] == 61


def test_a_gpu_that_fell_off_the_bus_does_not_take_the_others_with_it() -> None:
    def find(index: int) -> str:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return f"handle {index}"

    values = values_of(GpuSource(nvml=FakeNvml(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=find)))
    assert values["dsv41_gpu_temperature_celsius{gpu=1}"] == 61
    assert "dsv41_gpu_temperature_celsius{gpu=0}" not in values


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_a_driver_there_is_nothing_to_say(code: int) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(code)

    assert values_of(GpuSource(nvml=FakeNvml(nvmlInit=fail))) == {}


def test_a_real_gpu_answers_every_metric() -> None:
    """The recorded page of two H200: no GPU metric that only a stand-in emits. An Xid has no sample before its first error."""
    page = (Path(__file__).parents[3] / "deploy/results/rank/exporter.prom").read_text(encoding="utf-8")
    answered = {
        (sample.name, sample.labels["gpu"])
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "gpu" in sample.labels
    }
    declared = {metric.name for metric in metrics.METRICS if metric.name.startswith("dsv41_gpu_")}
    assert answered == {(name, gpu) for name in declared - {metrics.GPU_XID.name} for gpu in ("0", "1")}
