"""The result that is kept: the baseline of the hand-off's speed, for preflight, the exporter and its alert."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Plan

STORED = Path("transport") / "proof.json"
PROMPT_JOB = "prompt of"
"""How the name of the job begins that moves one prompt's KV."""
BULK_BYTES = 16 << 20
# What of an engine's environment decides about the way data takes.
_DECIDING = ("UCX_", "NIXL_", "PYTORCH_", "CUDA_", "NCCL_", "SGLANG_DISAGGREGATION_NIXL")
# NIXL's own counters, which do not: their page belongs to the engines, which may be serving it now.
COUNTERS = "NIXL_TELEMETRY_"


class Step(BaseModel):
    """One job of one pair."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    bytes: int
    blocks: int
    """Descriptors in flight together."""
    median_gb_s: float
    best_gb_s: float
    median_ms: float
    first_ms: float
    """The first round, which also opens the connection."""


class Pair(BaseModel):
    """One rank of prefill and its peer of decode."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prefill: str
    """Engine and rank, such as prefill:0."""
    decode: str
    gpus: tuple[int, int] | None
    lane: str
    """cuda_ipc, rdma, shm, tcp or unknown."""
    lanes: tuple[str, ...]
    """Everything UCX named."""
    steps: tuple[Step, ...]
    matched: bool
    """Whether the bytes arrived as they were sent."""
    reason: str
    """Why it is slower than its link; empty when it is not."""
    remedy: str

    @property
    def best_gb_s(self) -> float:
        """The best write of BULK_BYTES or more: a smaller one fits into a processor's cache and says nothing of the link."""
        return max(step.best_gb_s for step in self.steps if step.bytes >= BULK_BYTES)


class Collective(BaseModel):
    """One all-reduce over the GPUs of an engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    engine: str
    gpus: tuple[int, ...]
    bus_gb_s: float
    """Bytes a GPU sends and receives over the time, as nccl-tests count: 2 (n - 1) / n of the buffer."""
    problem: str
    """Why it did not work; empty when every rank got the right sum."""


class Proof(BaseModel):
    """One run of `dsv41 transport prove`. `best_gb_s`, `lane`, `reason` are those of the slowest pair."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: Literal[1] = 1

    date: str
    node: str
    user: str
    kernel_release: str | None
    driver_version: str | None
    backend: str
    lane: str
    best_gb_s: float
    prompt_ms: float
    """Median time of one prompt's hand-off, in the shape its pools have."""
    reason: str
    remedy: str
    pairs: tuple[Pair, ...]
    provenance: dict[str, Any]
    environment: dict[str, dict[str, str]] = {}
    """Engine -> what its environment said of transports when it was measured."""
    collectives: tuple[Collective, ...] = ()
    short: bool = False
    """Whether it was taken before a start, with fewer sizes and rounds."""

    @property
    def prompt_gb_s(self) -> float:
        """Median speed of one prompt's hand-off over the slowest pair; `best_gb_s` where none was moved.

        What an engine can reach: its pools are many small blocks, and each costs the same on a fast link as on a slow one.
        """
        speeds = [step.median_gb_s for pair in self.pairs for step in pair.steps if step.name.startswith(PROMPT_JOB)]
        return min(speeds, default=self.best_gb_s)

    @property
    def good(self) -> bool:
        """Whether every byte arrived and no pair is slower than its link."""
        pairs = all(pair.matched and not pair.reason for pair in self.pairs)
        return pairs and not any(each.problem for each in self.collectives)


def store_proof(proof: Proof, state_dir: str) -> Path:
    """Keep `proof` as the baseline of this node, owned as the state directory is: root may prove, the services renew.

    Raises InputError when the directory cannot be written.
    """
    path = Path(state_dir) / STORED
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(proof.model_dump_json(indent=1) + "\n", encoding="utf-8")
        if os.geteuid() == 0:
            owner = Path(state_dir).stat()
            for each in (path.parent, fresh):
                os.chown(each, owner.st_uid, owner.st_gid)
        fresh.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", where=f"{path}, key node.state_dir", remedy="make it writable"
        ) from None
    return path


def read_proof(state_dir: str) -> Proof | None:
    """Return the baseline of this node; None when there is none, or one of another version."""
    try:
        return Proof.model_validate_json((Path(state_dir) / STORED).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def keep_deciding(env: Mapping[str, str]) -> dict[str, str]:
    """Return what of `env` decides about the way data takes."""
    return {key: value for key, value in env.items() if key.startswith(_DECIDING) and not key.startswith(COUNTERS)}


def list_environments(plan: Plan) -> dict[str, dict[str, str]]:
    """Return engine -> `keep_deciding` of its environment, for every engine of `plan`."""
    return {engine.name: keep_deciding(engine.env) for engine in plan.engines}


def explain_stale(proof: Proof, plan: Plan, facts: Facts) -> str:
    """Return why `proof` says nothing of `plan` on the machine as it is now; empty when it holds."""
    if proof.kernel_release != facts.kernel_release or proof.driver_version != facts.driver_version:
        return "measured before the kernel or the driver changed"
    now = list_environments(plan)
    for name, env in now.items():
        before = proof.environment.get(name, {})
        changed = sorted(key for key in {**before, **env} if before.get(key) != env.get(key))
        if changed:
            return f"measured before {changed[0]} of {name} changed"
    return ""


def hands_over(plan: Plan) -> bool:
    """Return whether `plan` hands over from prefill to decode through NIXL, and within this host: what the proof is about."""
    if any(service.is_engine for service in plan.elsewhere):
        return False
    writers = [engine for engine in plan.engines if engine.kind == "prefill"]
    return any(engine.kind == "decode" for engine in plan.engines) and any("nixl" in each.argv for each in writers)


def find_peers(plan: Plan) -> list[tuple[str, int, int | None, str, int, int | None]]:
    """Return (engine, rank, GPU) of prefill and of the decode rank it writes to, rank by rank; GPU None on a CPU.

    Raises InputError when the shape hands nothing over, or does so between hosts.
    """
    prefill = [engine for engine in plan.workers if engine.kind == "prefill"]
    decode = [engine for engine in plan.workers if engine.kind == "decode"]
    far = [engine for engine in (*prefill, *decode) if engine in plan.elsewhere]
    if far:
        raise InputError(
            f"{far[0].name} runs on {far[0].node}, and the proof moves memory within one host",
            where="key hosts",
            remedy="let the gate of the router prove the hand-off: `dsv41 gate` on its host",
        )
    if not prefill or not decode:
        raise InputError(
            f"shape {plan.shape} hands nothing over", where="key shape", remedy="choose a shape with prefill and decode"
        )
    return [
        (source.name, rank, source_gpu, sink.name, rank, sink_gpu)
        for source in prefill
        for sink in decode
        for rank, (source_gpu, sink_gpu) in enumerate(
            zip(source.placement.gpus or (None,), sink.placement.gpus or (None,), strict=False)
        )
    ]
