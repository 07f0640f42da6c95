"""Put weights, pools and what runs beside them against the memory of a GPU. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.capacity.engine import read_settings
from dsv41_serving.capacity.pools import hand_off_bytes, size_pools
from dsv41_serving.capacity.weights import weigh

if TYPE_CHECKING:
    from dsv41_serving.capacity.engine import EngineSettings
    from dsv41_serving.capacity.host import Host
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
# Outside the static share. CUDA graphs of one batch size, a layer: forty layers at the size of a TP4 rank and seven sizes, 1 to 64,
# took 2.15 GiB of an NVIDIA H200 while another engine captured beside it, so at most that; six layers and three sizes took 0.10
# (SGLang 0.5.23, 2026-11-30). What SGLang reports as sglang:graph_memory_usage_gb.
GRAPH_BYTES = round(2.15 * GIB / (40 * 7))
# Graphs of the last layers of a prefill, captured with the first long prompt: 1.63 GiB with forty layers, 1.69 with six, there.
TAIL_GRAPH_BYTES = round(1.7 * GIB)


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
    decode_graph_bytes: int
    """CUDA graphs of decode steps, captured at the start."""
    tail_graph_bytes: int
    """CUDA graphs of the last layers of a prefill."""
    tokens: int
    """Tokens of the global KV pool; 0 or less when it does not fit."""
    staging_bytes: int = 0
    """Staging areas of the packed hand-off, made when the first peer registers; of a rank."""
    host_bytes: int = 0
    """Host memory of its processes and its Engram tables, on the NUMA node of the engine; on a CPU also of weights, pools and
    staging areas."""

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
        return self.decode_graph_bytes + self.tail_graph_bytes + self.transient_bytes + self.staging_bytes

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
    """Host memory of all engines."""
    host_short: dict[str, int] | None = None
    """Pool of host memory -> bytes that it falls short; None when the machine that will run them is not known."""

    @property
    def fits(self) -> bool:
        """Whether nothing that is known falls short."""
        return not self.short and not self.host_short

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
    spec: NodeSpec, shape: ModelShape, gpu_bytes: int | None, shape_name: str | None = None, host: Host | None = None
) -> NodeCapacity:
    """Return what the shape `shape_name` of `spec` (default: the one it runs) can hold on GPUs of `gpu_bytes`, on `host`."""
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
    needed = {each.settings.name: each.host_bytes for each in engines}
    return NodeCapacity(
        shape_name=name,
        engines=engines,
        host_bytes=sum(needed.values()),
        host_short=host.find_shortages(needed) if host is not None else None,
    )


def estimate_engine(
    shape: ModelShape,
    settings: EngineSettings,
    gpu_bytes: int | None,
    processes_bytes: int = 0,
    *,
    staging_bytes: int = 0,
) -> EngineCapacity:
    """Return what one engine can hold; its processes take `processes_bytes` of host memory, a rank stages in `staging_bytes`.

    On a CPU weights and pools are added to `processes_bytes`. What a profile says of these was measured with a small model in them,
    so that this is too much by as much.
    """
    weights, pools = weigh(shape, settings), size_pools(shape, settings)
    on_gpu = settings.device == "cuda" and gpu_bytes is not None
    free = gpu_bytes - CONTEXT_BYTES if on_gpu and gpu_bytes is not None else 0
    static = int(free * settings.memory_fraction)
    cap = settings.max_total_tokens
    fitting = pools.tokens_in(static - weights.gpu - LOADED_BYTES, settings.page) if on_gpu else cap or 0
    tokens = min(fitting, cap) if cap is not None else fitting
    on_host = 0 if on_gpu else settings.tp * (weights.gpu + pools.bytes_of(max(0, tokens)) + staging_bytes)
    return EngineCapacity(
        settings=settings,
        gpu_bytes=gpu_bytes if on_gpu else None,
        weights=weights,
        pools=pools,
        static_bytes=static,
        transient_bytes=_transient_bytes(settings) if shape.is_v41 and settings.role != "decode" else 0,
        decode_graph_bytes=settings.decode_graphs * shape.num_hidden_layers * GRAPH_BYTES if on_gpu else 0,
        tail_graph_bytes=TAIL_GRAPH_BYTES if on_gpu and shape.is_v41 and settings.tail_graphs else 0,
        tokens=tokens,
        staging_bytes=staging_bytes,
        host_bytes=processes_bytes + weights.engram_host + on_host,
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
