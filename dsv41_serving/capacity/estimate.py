"""Put weights, pools and what runs beside them against the memory of a GPU. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.capacity.engine import read_settings
from dsv41_serving.capacity.pools import hand_off_bytes, size_pools
from dsv41_serving.capacity.weights import weigh

if TYPE_CHECKING:
    from dsv41_serving.capacity.engine import EngineSettings
    from dsv41_serving.capacity.pools import Pools
    from dsv41_serving.capacity.shape import ModelShape
    from dsv41_serving.capacity.weights import Weights
    from dsv41_serving.spec.model import NodeSpec

GIB = 1 << 30
CONTEXT_LENGTHS = (4_096, 32_768, 131_072, 524_288)
# NVIDIA H200, memory as the driver counts it (measured); the others as nvidia-smi of that board shows it.
GPU_MEMORY = {"9.0": 143_771 << 20, "10.0": 183_359 << 20, "10.3": 284_208 << 20, "12.0": 97_887 << 20}
# What a process holds when SGLang looks at free memory: CUDA context and NCCL before loading (our estimate); libraries
# and kernels after it. The second from NVIDIA H200, six-layer V4.1, SGLang 0.5.23, 2026-11-29: 5.8 GiB counted as
# weights (7.2 with FP8 experts) against 5.3 (6.7) of tensors.
CONTEXT_BYTES = GIB // 2
LOADED_BYTES = GIB // 2
# Outside the static share: graphs of decode and of the decoder's tail (1.8 GiB measured on NVIDIA H200 for six layers).
GRAPH_BYTES = round(1.8 * GIB)


@dataclass(frozen=True)
class EngineCapacity:
    """One engine on GPUs of `gpu_bytes`. Sizes in bytes for each GPU."""

    settings: EngineSettings
    gpu_bytes: int | None
    """None on a CPU, where the pool has the size it is told."""
    weights: Weights
    pools: Pools
    static_bytes: int
    """The share of memory that weights and pools may fill."""
    transient_bytes: int
    """Largest temporary of the indexer beside them."""
    tokens: int
    """Tokens of the global KV pool; 0 or less when it does not fit."""
    staging_bytes: int = 0
    """Staging areas of the packed hand-off, made when the first peer registers; of a rank."""
    host_bytes: int = 0
    """Host memory of its processes and its Engram tables, on a CPU of staging areas too, on the NUMA node of the engine."""

    @property
    def short_bytes(self) -> int:
        """By how much it does not fit; 0 when it fits.

        The static share must hold weights and a request of the longest context; what the pool leaves must hold graphs,
        the temporary and staging areas.
        """
        if self.gpu_bytes is None:
            return 0
        resident = self.weights.gpu + LOADED_BYTES
        inside = resident + self.pools.bytes_of(self.settings.context) - self.static_bytes
        return max(0, inside, self.beside_bytes - self.spare_bytes)

    @property
    def beside_bytes(self) -> int:
        """What is allocated after the pools: graphs, the temporary and staging areas."""
        return GRAPH_BYTES + self.transient_bytes + self.staging_bytes

    @property
    def spare_bytes(self) -> int:
        """What weights and pools leave free."""
        resident = CONTEXT_BYTES + self.weights.gpu + LOADED_BYTES
        return (self.gpu_bytes or 0) - resident - self.pool_bytes

    @property
    def safe_tokens(self) -> int:
        """The largest pool that leaves room for what comes after it; 0 or less when none does."""
        resident = CONTEXT_BYTES + self.weights.gpu + LOADED_BYTES
        return self.pools.tokens_in((self.gpu_bytes or 0) - resident - self.beside_bytes, self.settings.page)

    @property
    def pool_bytes(self) -> int:
        """What the engine will report for its pools."""
        return self.pools.bytes_of(max(0, self.tokens))

    def sessions(self, length: int) -> int:
        """Return how many requests of `length` tokens run at once: the pool and the cap of running requests bound them."""
        page = self.settings.page
        return min(self.settings.max_running_requests, max(0, self.tokens) // (-(-length // page) * page))


@dataclass(frozen=True)
class NodeCapacity:
    """All engines of a shape."""

    shape_name: str
    engines: tuple[EngineCapacity, ...]
    host_bytes: int
    """Host memory for Engram tables and processes of all engines."""

    @property
    def short(self) -> dict[str, int]:
        """Engine -> bytes it falls short on each GPU."""
        return {each.settings.name: each.short_bytes for each in self.engines if each.short_bytes}

    def sessions(self, length: int) -> int:
        """Return the requests of `length` that decode at once on the node."""
        return sum(each.sessions(length) for each in self.engines if each.settings.role != "prefill")

    @property
    def generating_tokens(self) -> int:
        """Tokens of KV that requests being answered can hold."""
        return sum(max(0, each.tokens) for each in self.engines if each.settings.role != "prefill")

    def hand_off(self, shape: ModelShape, prompt: int) -> int:
        """Return the bytes each decode rank receives for a prompt; 0 where nothing is handed over."""
        decode = [each.settings for each in self.engines if each.settings.role == "decode"]
        return hand_off_bytes(shape, decode[0], prompt) if decode else 0


def estimate_node(
    spec: NodeSpec, shape: ModelShape, gpu_bytes: int | None, shape_name: str | None = None
) -> NodeCapacity:
    """Return what the shape `shape_name` of `spec` (default: the one it runs) can hold on GPUs of `gpu_bytes`."""
    name = shape_name or spec.shape
    processes = spec.memory.host_bytes_per_engine
    roles = {each: spec.engines[each].role for each in spec.shapes[name]}
    prefill_engines = [*roles.values()].count("prefill")
    engines = tuple(
        estimate_engine(
            shape,
            read_settings(spec, each),
            gpu_bytes,
            processes,
            staging_bytes=spec.handoff.staging_bytes(role, prefill_engines),
        )
        for each, role in roles.items()
    )
    return NodeCapacity(shape_name=name, engines=engines, host_bytes=sum(each.host_bytes for each in engines))


def estimate_engine(
    shape: ModelShape,
    settings: EngineSettings,
    gpu_bytes: int | None,
    processes_bytes: int = 0,
    *,
    staging_bytes: int = 0,
) -> EngineCapacity:
    """Return what one engine can hold; its processes take `processes_bytes` of host memory, a rank stages in `staging_bytes`."""
    weights, pools = weigh(shape, settings), size_pools(shape, settings)
    on_gpu = settings.device == "cuda" and gpu_bytes is not None
    free = gpu_bytes - CONTEXT_BYTES if on_gpu and gpu_bytes is not None else 0
    static = int(free * settings.memory_fraction)
    cap = settings.max_total_tokens
    fitting = pools.tokens_in(static - weights.gpu - LOADED_BYTES, settings.page) if on_gpu else cap or 0
    return EngineCapacity(
        settings=settings,
        gpu_bytes=gpu_bytes if on_gpu else None,
        weights=weights,
        pools=pools,
        static_bytes=static,
        transient_bytes=_transient_bytes(settings) if shape.is_v41 and settings.role != "decode" else 0,
        tokens=min(fitting, cap) if cap is not None else fitting,
        staging_bytes=staging_bytes,
        host_bytes=processes_bytes + weights.engram_host + (0 if on_gpu else settings.tp * staging_bytes),
    )


def _transient_bytes(settings: EngineSettings) -> int:
    """Return the largest temporary of index scoring over a prefix of the whole context.

    9.0 scores in pieces of at most 1 GiB (SGLang 0.5.23, dsv4/scoring), 10.x within SGLANG_DSV4_FP4_LOGITS_BUDGET_MB
    (2048); elsewhere about 14 bytes for each token of a chunk and of its prefix (DS4.1 recipe readme, 2026-09).
    """
    if settings.compute_capability == "9.0":
        return GIB
    if settings.compute_capability.startswith("10."):
        return 2 * GIB
    return 14 * settings.chunk * settings.context
