"""The exporter's GPU source against the real driver."""

from __future__ import annotations

from dsv41_serving.exporter import metrics
from dsv41_serving.exporter.gpu import GpuSource


def test_every_gpu_tells_its_health() -> None:
    source = GpuSource()
    families = {family.name: family for family in source.read()}
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }
    gpus = {dict(labels)["gpu"] for name, labels in values if name == metrics.GPU_INFO.name}
    assert gpus
    for gpu in gpus:
        of_gpu = {name for name, labels in values if dict(labels)["gpu"] == gpu}
        assert {
            metrics.GPU_TEMPERATURE.name,
            metrics.GPU_POWER.name,
            metrics.GPU_MEMORY_TOTAL.name,
            metrics.GPU_MEMORY_USED.name,
            metrics.GPU_UTILISATION.name,
            metrics.GPU_SM_CLOCK.name,
            metrics.GPU_THROTTLED.name,
        } <= of_gpu
        total = values[metrics.GPU_MEMORY_TOTAL.name, (("gpu", gpu),)]
        assert 0 < values[metrics.GPU_MEMORY_USED.name, (("gpu", gpu),)] <= total
        assert 0 < values[metrics.GPU_TEMPERATURE.name, (("gpu", gpu),)] < 120
    assert set(families) <= {metric.name.removesuffix("_total") for metric in metrics.METRICS}
