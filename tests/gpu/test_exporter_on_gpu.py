"""The exporter's GPU source against the real driver."""

from __future__ import annotations

import time

import pytest

from dsv41_serving.exporter import metrics
from dsv41_serving.exporter.gpu import GpuSource

# What every data-centre GPU tells an unprivileged process.
ALWAYS = {
    metric.name
    for metric in (
        metrics.GPU_INFO,
        metrics.GPU_TEMPERATURE,
        metrics.GPU_POWER,
        metrics.GPU_MEMORY_TOTAL,
        metrics.GPU_MEMORY_USED,
        metrics.GPU_UTILISATION,
        metrics.GPU_SM_CLOCK,
        metrics.GPU_THROTTLED,
        metrics.GPU_ECC,
    )
}


class Page:
    """One reading: value by name and labels."""

    def __init__(self, source: GpuSource) -> None:
        self.values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in source.read()
            for sample in family.samples
        }

    def names_of(self, gpu: str) -> set[str]:
        return {name for name, labels in self.values if dict(labels)["gpu"] == gpu}

    def of(self, metric: metrics.Metric, gpu: str) -> list[float]:
        return [v for (name, labels), v in self.values.items() if name == metric.name and dict(labels)["gpu"] == gpu]

    @property
    def gpus(self) -> list[str]:
        return sorted({dict(labels)["gpu"] for name, labels in self.values if name == metrics.GPU_INFO.name})


def locate(address: str) -> tuple[int, int, int]:
    """Domain, bus and device of a PCI address; a virtual machine may have every GPU on a domain of its own."""
    domain, bus, device = address.partition(".")[0].split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


@pytest.fixture(scope="module")
def source() -> GpuSource:
    return GpuSource({"0": "decode"})


def test_every_gpu_tells_its_health(source: GpuSource) -> None:
    page = Page(source)
    assert page.gpus
    for gpu in page.gpus:
        assert page.names_of(gpu) >= ALWAYS
        (total,), (used,) = page.of(metrics.GPU_MEMORY_TOTAL, gpu), page.of(metrics.GPU_MEMORY_USED, gpu)
        assert 0 < used <= total
        (temperature,) = page.of(metrics.GPU_TEMPERATURE, gpu)
        assert 0 < temperature < 120
        assert set(page.of(metrics.GPU_THROTTLED, gpu)) <= {0.0, 1.0}
    known = {metric.name for metric in metrics.METRICS}
    assert {name for name, _ in page.values} <= known


def test_a_gpu_at_work_shows_it(source: GpuSource) -> None:
    """Matrix products keep memory or tensor cores busy between two looks; both are shares."""
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability(0) < (9, 0):
        pytest.skip("NVML's performance counters begin with Hopper")
    first = torch.cuda.get_device_properties(0)
    Page(source)
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        left @ left
        torch.cuda.synchronize()
    page = Page(source)
    (gpu,) = [
        dict(labels)["gpu"]
        for name, labels in page.values
        if name == metrics.GPU_INFO.name
        and locate(dict(labels)["pci"]) == (first.pci_domain_id, first.pci_bus_id, first.pci_device_id)
    ]
    (tensor,), (bandwidth,) = page.of(metrics.GPU_TENSOR, gpu), page.of(metrics.GPU_BANDWIDTH, gpu)
    assert 0.2 < tensor <= 1.0
    assert 0.0 < bandwidth <= 1.0
