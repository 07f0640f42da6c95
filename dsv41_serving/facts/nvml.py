"""GPUs as the driver's management library (NVML) sees them, behind a seam that tests and recorded machines fill."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pynvml
from pydantic import BaseModel, ConfigDict, ValidationError

from dsv41_serving.facts import files
from dsv41_serving.facts.model import GpuHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NVML_RECORD = "nvml.json"

# Reasons for low clocks that are a fault of power or cooling; being idle and a chosen power cap are none.
_SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "software thermal slowdown",
}
_COMPUTE_MODES: dict[int | None, Literal["default", "prohibited", "exclusive"]] = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive",
}
_P2P_READ = 0
"""NVML_P2P_CAPS_INDEX_READ of nvml.h; nvidia-ml-py's constant of that name is a tuple (a comma too many), which NVML cannot take."""


class NvmlGpu(BaseModel):
    """One GPU in NVML's own terms."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_total_bytes: int
    memory_used_bytes: int
    compute_capability: tuple[int, int]
    persistence: bool | None
    processes: tuple[int, ...] | None
    nvlink_peers: tuple[int, ...] | None
    health: GpuHealth = GpuHealth()


class NvmlReport(BaseModel):
    """Everything NVML said at one moment; `nvml.json` of a recorded machine is this as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem: str | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    gpus: tuple[NvmlGpu, ...] = ()


class NvmlSource(Protocol):
    """Where GPUs come from."""

    def query(self) -> NvmlReport:
        """Return what is known of the GPUs. Trouble with them is part of the report, not an exception."""


class NvmlRecord:
    """Reads `nvml.json` in the root of a recorded machine."""

    def __init__(self, root: Path) -> None:
        """Read below `root`."""
        self._path = root / NVML_RECORD

    def query(self) -> NvmlReport:
        """Return the recorded report. Raises InputError when the file is malformed."""
        content = files.read_text(self._path)
        if content is None:
            return NvmlReport(problem=f"no {NVML_RECORD} was recorded with this machine")
        try:
            return NvmlReport.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise files.malformed(self._path, f"{where}: {first['msg']}" if where else first["msg"]) from None


class NvmlLibrary:
    """Asks the driver of this machine."""

    def query(self) -> NvmlReport:
        """Return what NVML says now; a GPU that it cannot read is named in the problem and left out."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError_LibraryNotFound:
            return NvmlReport(problem="libnvidia-ml.so.1 was not found: no NVIDIA driver is installed")
        except pynvml.NVMLError as error:
            return NvmlReport(problem=f"NVML does not start: {error}")
        try:
            return _query_driver()
        except pynvml.NVMLError as error:
            return NvmlReport(problem=f"NVML does not answer: {error}")
        finally:
            pynvml.nvmlShutdown()


def _query_driver() -> NvmlReport:
    handles: dict[int, Any] = {}
    gpus: list[NvmlGpu] = []
    problems: list[str] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        with _collect_problems(index, problems):
            handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
    for index in handles:
        with _collect_problems(index, problems):
            gpus.append(_query_gpu(index, handles))
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return NvmlReport(
        problem="; ".join(problems) or None,
        driver_version=pynvml.nvmlSystemGetDriverVersion(),
        cuda_driver_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(gpus),
    )


@contextmanager
def _collect_problems(index: int, problems: list[str]) -> Iterator[None]:
    """Note an NVML error about one GPU (fallen off the bus, say), so that the others are still reported."""
    try:
        yield
    except pynvml.NVMLError as error:
        problems.append(f"GPU {index}: {error}")


def _query_gpu(index: int, handles: dict[int, Any]) -> NvmlGpu:
    handle = handles[index]
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if memory is None:  # drivers before 510 know version 1 alone, which counts the driver's own memory as used
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    persistence = _ask(pynvml.nvmlDeviceGetPersistenceMode, handle)
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return NvmlGpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        pci_bus_id=pynvml.nvmlDeviceGetPciInfo(handle).busId,
        memory_total_bytes=memory.total,
        memory_used_bytes=memory.used,
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        persistence=None if persistence is None else bool(persistence),
        processes=None if processes is None else tuple(sorted(process.pid for process in processes)),
        # Behind an NVSwitch these are all the others.
        nvlink_peers=_query_peers(index, handles, pynvml.NVML_P2P_CAPS_INDEX_NVLINK),
        health=_query_health(index, handles),
    )


def _query_health(index: int, handles: dict[int, Any]) -> GpuHealth:
    handle = handles[index]
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    remapped = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return GpuHealth(
        ecc_uncorrected=_ask(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        power_limit_mw=_ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle),
        power_default_mw=_ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        slowdowns=None if reasons is None else tuple(name for bit, name in _SLOWDOWNS.items() if reasons & bit),
        pcie_width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_width_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        mig=None if mig is None else bool(mig[0]),
        compute_mode=_COMPUTE_MODES.get(_ask(pynvml.nvmlDeviceGetComputeMode, handle)),
        p2p_peers=_query_peers(index, handles, _P2P_READ),
    )


def _query_peers(index: int, handles: dict[int, Any], capability: int) -> tuple[int, ...] | None:
    """Return the GPUs to which the driver offers peer-to-peer `capability`, or None when it does not say."""
    peers = []
    for other, handle in handles.items():
        if other == index:
            continue
        status = _ask(pynvml.nvmlDeviceGetP2PStatus, handles[index], handle, capability)
        if status is None:
            return None
        if status == pynvml.NVML_P2P_STATUS_OK:
            peers.append(other)
    return tuple(peers)


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer, or None where this GPU, driver or user does not get one. Other errors pass."""
    try:
        return question(*arguments)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_ArgumentVersionMismatch,
    ):
        return None
