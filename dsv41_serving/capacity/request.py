"""What `dsv41 capacity` needs from the machine before it can estimate: sizes of the model and memory of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.capacity.estimate import CONTEXT_LENGTHS, GIB, GPU_MEMORY
from dsv41_serving.capacity.host import find_host
from dsv41_serving.errors import InputError
from dsv41_serving.facts.directory import measure_read
from dsv41_serving.preflight.checkpoint import locate_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dsv41_serving.capacity.host import Host
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.spec.model import NodeSpec


def find_gpu_bytes(spec: NodeSpec, facts: Facts, wanted_gib: float | None) -> int | None:
    """Return the memory of one GPU: as asked for, else of the smallest here, else of the board the profile is for.

    None on a CPU. Raises InputError when nothing tells.
    """
    if spec.engine.device == "cpu":
        return None
    if wanted_gib is not None:
        return round(wanted_gib * GIB)
    if facts.gpus:
        return min(gpu.memory_total_bytes for gpu in facts.gpus)
    try:
        return GPU_MEMORY[spec.engine.compute_capability]
    except KeyError:
        raise InputError(
            f"the memory of a GPU of compute capability '{spec.engine.compute_capability}' is not known",
            where=f"profile {spec.profile}",
            remedy="give it in GiB: --gpu-memory 140",
        ) from None


def find_shape_host(
    spec: NodeSpec, facts: Facts, shape: str, *, gpu_gib: float | None, host_gib: float | None
) -> Host | None:
    """Return the machine that runs `shape`: one of `host_gib`, else this one when it is the target.

    It is for a CPU, and where it has GPUs and none of another size was asked for. Else None.
    """
    if host_gib is not None:
        return find_host(spec, facts, shape, round(host_gib * GIB))
    if spec.engine.device == "cpu" or (facts.gpus and gpu_gib is None):
        return find_host(spec, facts, shape)
    return None


def choose_lengths(spec: NodeSpec, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the context lengths to show: those asked for, else the usual ones that the engine allows.

    Raises InputError for one that is beyond the context of the engines: no request can be so long.
    """
    context = spec.engine.context_length
    if wanted and max(wanted) > context:
        raise InputError(
            f"{max(wanted):,} tokens are more than engines take ({context:,})",
            where="--context",
            remedy="raise engine.context_length, or ask for less",
        )
    if wanted:
        return tuple(sorted(set(wanted)))
    usual = {length for length in CONTEXT_LENGTHS if length < context}
    return tuple(sorted(usual | {context}))


def find_checkpoint(spec: NodeSpec) -> Path | None:
    """Return the directory of the model when it is here."""
    path = locate_model(spec)
    return path if path is not None and path.is_dir() else None


def estimate_load_s(checkpoint: Path | None, size_bytes: int, disk_gb_s: float | None) -> float | None:
    """Return the seconds one engine reads `size_bytes` of weights: at `disk_gb_s`, else as fast as a part was read here."""
    speed = disk_gb_s * 1e9 if disk_gb_s else None
    if speed is None and checkpoint is not None:
        weights = sorted(checkpoint.glob("*.safetensors"), key=lambda file: file.stat().st_size)
        speed = measure_read(weights[-1]) if weights else None
    return size_bytes / speed if speed else None
