"""The settings of one engine that sizes depend on, taken from the description. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.spec.model import EngineRole, NodeSpec

_CHUNK = 8192  # SGLang's default for large GPUs
_EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL
_GRAPHS = 10  # powers of two up to 512
_MEMORY_FRACTION = 0.88  # SGLang chooses between .85 and .9 when nothing is said


@dataclass(frozen=True)
class EngineSettings:
    """One engine. Token counts in tokens, sizes in bytes."""

    name: str
    role: Literal["prefill", "decode", "aggregated"]
    device: str
    compute_capability: str
    dtype: str
    tp: int
    ep: int
    memory_fraction: float
    max_running_requests: int
    max_total_tokens: int | None
    chunk: int
    context: int
    page: int
    layout: str
    """v4, v41 (528-byte entries for everything), or v41_fp4 (288-byte entries in the KV sources)."""
    engram: str
    fp4_experts: bool
    draft_tokens: int
    """Rows of a verify step; 0 without speculation."""
    overlap: bool
    radix_cache: bool
    prefix_tails: int | None
    extra_slots: int
    eviction_interval: int
    decode_graphs: int
    """Batch sizes whose decode step is a CUDA graph."""
    tail_graphs: bool
    """Whether the last layers of a prefill run from CUDA graphs."""


def read_settings(spec: NodeSpec, name: str) -> EngineSettings:
    """Return the settings of engine `name`: its own over those of all engines, as the plan passes them."""
    role = spec.engines[name]
    args = {**spec.engine.args, **role.args}
    env = {**spec.engine.env, **role.env}
    block = args.get("speculative-dspark-block-size") or args.get("speculative-num-draft-tokens")
    tails = args.get("swa-prefix-tails")
    return EngineSettings(
        name=name,
        role=role.role,
        device=spec.engine.device,
        compute_capability=spec.engine.compute_capability,
        dtype=spec.engine.dtype,
        tp=role.tp,
        ep=role.ep,
        memory_fraction=role.memory_fraction or _MEMORY_FRACTION,
        max_running_requests=role.max_running_requests,
        max_total_tokens=role.max_total_tokens,
        chunk=role.chunked_prefill_size or _CHUNK,
        context=spec.engine.context_length,
        page=spec.engine.page_size,
        layout=_choose_layout(env, args.get("dsv4-attn-backend")),
        engram=spec.memory.engram,
        fp4_experts=env.get("SGLANG_DSV4_FP4_EXPERTS", "1") not in {"0", "false"},
        # A DSpark block of n is verified as n + 1 rows.
        draft_tokens=int(block) + 1 if isinstance(block, int) and not isinstance(block, bool) else 0,
        overlap=args.get("disable-overlap-schedule") is not True,
        radix_cache=role.role != "decode" and args.get("disable-radix-cache") is not True,
        prefix_tails=tails if isinstance(tails, int) and not isinstance(tails, bool) else None,
        extra_slots=int(str(args.get("disaggregation-decode-extra-slots", 0))),
        eviction_interval=int(env.get("SGLANG_SWA_EVICTION_INTERVAL", _EVICTION_INTERVAL)),
        decode_graphs=_count_graphs(role, args) if spec.engine.device == "cuda" else 0,
        tail_graphs=spec.engine.device == "cuda"
        and role.role != "decode"
        and args.get("enable-decoder-swa-bounded-replay") is not False
        and env.get("SGLANG_DSV4_DECODER_TAIL_GRAPH_MAX_ROWS") != "0",
    )


def _count_graphs(role: EngineRole, args: Mapping[str, object]) -> int:
    """Return the batch sizes that are captured: as told, else about as many as SGLang chooses; a prefill engine decodes nothing."""
    off = args.get("disable-cuda-graph") is True or args.get("disable-decode-cuda-graph") is True
    return 0 if off or role.role == "prefill" else len(role.graph_batch_sizes) or _GRAPHS


def _choose_layout(env: dict[str, str], backend: object) -> str:
    """Return the layout as SGLang 0.5.23 does: v4 unless said otherwise; the mega kernel of 10.x takes v41."""
    wanted = env.get("SGLANG_DSV4_KV_LAYOUT", "v4").lower()
    if backend == "flashmla_mega" or wanted.startswith("v41"):
        fp8 = env.get("SGLANG_DSV4_COMPRESSED_KV_LAYOUT", "auto").lower() in {"fp8", "v41"}
        return "v41" if fp8 else "v41_fp4"
    return "v4"
