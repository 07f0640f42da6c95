"""The driver's library: trouble with one GPU, or with all, is reported and never raised."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pynvml
import pytest

from dsv41_serving.facts import NvmlGpu, NvmlLibrary, NvmlReport
from dsv41_serving.facts.model import GpuHealth

MIB = 1 << 20


def answer_peers(_one: int, _other: int, capability: int) -> int:
    """Every GPU reads every other's memory; as the library does, refuse a capability that is no number."""
    assert ctypes.c_uint(capability).value in {0, 2}  # NVML_P2P_CAPS_INDEX_READ and _NVLINK of nvml.h
    return int(pynvml.NVML_P2P_STATUS_OK)


class FakeDriver:
    """NVML with three H200 as a handle's index says; tests override single answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.shutdowns = 0
        self.answer(
            nvmlInit=lambda: None,
            nvmlShutdown=self._shut_down,
            nvmlSystemGetDriverVersion=lambda: "580.95.05",
            nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
            nvmlDeviceGetCount=lambda: 3,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
            nvmlDeviceGetName=lambda _: "NVIDIA H200",
            nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
            nvmlDeviceGetMemoryInfo=lambda _, version=None: SimpleNamespace(
                total=143771 * MIB, used=(0 if version else 600) * MIB
            ),
            nvmlDeviceGetCudaComputeCapability=lambda _: [9, 0],
            nvmlDeviceGetPersistenceMode=lambda _: 1,
            nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=9), SimpleNamespace(pid=7)],
            nvmlDeviceGetP2PStatus=answer_peers,
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: pynvml.nvmlClocksThrottleReasonGpuIdle,
            nvmlDeviceGetRemappedRows=lambda _: (1, 0, 0, 0),
            nvmlDeviceGetMigMode=lambda _: [0, 0],
            nvmlDeviceGetTotalEccErrors=lambda *_: 0,
            nvmlDeviceGetPowerManagementLimit=lambda _: 600_000,
            nvmlDeviceGetPowerManagementDefaultLimit=lambda _: 700_000,
            nvmlDeviceGetCurrPcieLinkWidth=lambda _: 8,
            nvmlDeviceGetMaxPcieLinkWidth=lambda _: 16,
            nvmlDeviceGetComputeMode=lambda _: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
        )

    def answer(self, **answers: object) -> None:
        """Give NVML functions by name."""
        for name, answer in answers.items():
            self._monkeypatch.setattr(pynvml, name, answer)

    def refuse(self, name: str, code: int) -> None:
        """Let an NVML function fail with an NVML error code."""

        def fail(*_: object) -> None:
            raise pynvml.NVMLError(code)

        self.answer(**{name: fail})

    def _shut_down(self) -> None:
        self.shutdowns += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Stand in for the driver."""
    return FakeDriver(monkeypatch)


def test_a_healthy_driver_is_reported_in_full(driver: FakeDriver) -> None:
    """Memory in use excludes the driver's own, processes ascend, peers leave out the GPU itself."""
    report = NvmlLibrary().query()
    assert (report.problem, report.driver_version, report.cuda_driver_version) == (None, "580.95.05", "12.8")
    assert report.gpus[1] == NvmlGpu(
        index=1,
        uuid="GPU-1",
        name="NVIDIA H200",
        pci_bus_id="00000000:01:00.0",
        memory_total_bytes=143771 * MIB,
        memory_used_bytes=0,
        compute_capability=(9, 0),
        persistence=True,
        processes=(7, 9),
        nvlink_peers=(0, 2),
        health=GpuHealth(
            ecc_uncorrected=0,
            remap_pending=False,
            remap_failed=False,
            power_limit_mw=600_000,
            power_default_mw=700_000,
            slowdowns=(),
            pcie_width=8,
            pcie_width_max=16,
            mig=False,
            compute_mode="exclusive",
            p2p_peers=(0, 2),
        ),
    )
    assert [gpu.index for gpu in report.gpus] == [0, 1, 2]
    assert driver.shutdowns == 1


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 was not found: no NVIDIA driver is installed"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVML does not start: Driver Not Loaded"),
    ],
)
def test_no_driver_is_a_problem_in_words(driver: FakeDriver, code: int, problem: str) -> None:
    """The report has no GPUs and says why."""
    driver.refuse("nvmlInit", code)
    assert NvmlLibrary().query() == NvmlReport(problem=problem)


@pytest.mark.parametrize("question", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_lost_gpu_is_named_and_the_others_stay(driver: FakeDriver, question: str) -> None:
    """A GPU that fell off the bus must not hide the rest of the node, nor itself."""
    healthy = getattr(pynvml, question)

    def lose_second(handle: int, *arguments: object) -> object:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return healthy(handle, *arguments)

    driver.answer(**{question: lose_second})
    report = NvmlLibrary().query()
    assert [gpu.index for gpu in report.gpus] == [0, 2]
    assert report.problem == "GPU 1: GPU is lost"


def test_a_driver_that_stops_answering_is_a_problem_in_words(driver: FakeDriver) -> None:
    """And NVML is shut down all the same."""
    driver.refuse("nvmlDeviceGetCount", pynvml.NVML_ERROR_UNKNOWN)
    assert NvmlLibrary().query() == NvmlReport(problem="NVML does not answer: Unknown Error")
    assert driver.shutdowns == 1


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_a_refused_answer_is_unknown_rather_than_none_at_all(driver: FakeDriver, code: int) -> None:
    """No permission to list processes is not the same as an idle GPU."""
    driver.refuse("nvmlDeviceGetPersistenceMode", code)
    driver.refuse("nvmlDeviceGetComputeRunningProcesses", code)
    driver.refuse("nvmlDeviceGetP2PStatus", code)
    report = NvmlLibrary().query()
    assert report.problem is None
    assert {(gpu.persistence, gpu.processes, gpu.nvlink_peers) for gpu in report.gpus} == {(None, None, None)}


def test_boards_without_nvlink_have_no_peers(driver: FakeDriver) -> None:
    """The driver answers, and the answer is no."""
    driver.answer(nvmlDeviceGetP2PStatus=lambda *_: pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
    assert {gpu.nvlink_peers for gpu in NvmlLibrary().query().gpus} == {()}


def test_an_old_driver_knows_the_first_version_of_memory_alone(driver: FakeDriver) -> None:
    """Then the driver's own share counts as used."""

    def know_version_one(_: int, version: int | None = None) -> SimpleNamespace:
        if version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=143771 * MIB, used=600 * MIB)

    driver.answer(nvmlDeviceGetMemoryInfo=know_version_one)
    assert {gpu.memory_used_bytes for gpu in NvmlLibrary().query().gpus} == {600 * MIB}


def test_a_gpu_in_trouble_says_which(driver: FakeDriver) -> None:
    """A pending row, a failed one, and clocks held down by heat; a chosen power cap is no fault."""
    reasons = (
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksThrottleReasonSwPowerCap
    )
    driver.answer(
        nvmlDeviceGetRemappedRows=lambda _: (0, 2, 1, 1),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: reasons,
        nvmlDeviceGetMigMode=lambda _: [1, 1],
    )
    health = NvmlLibrary().query().gpus[0].health
    assert (health.remap_pending, health.remap_failed, health.mig) == (True, True, True)
    assert health.slowdowns == ("hardware slowdown", "hardware thermal slowdown")


def test_what_a_board_does_not_say_about_its_condition_is_unknown(driver: FakeDriver) -> None:
    for name in (
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetP2PStatus",
    ):
        driver.refuse(name, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert {gpu.health for gpu in NvmlLibrary().query().gpus} == {GpuHealth()}
