"""KV bytes of one token on one GPU, as layout and model say; the pool the engine allocates is measured against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Plan, Service

# SGLang 0.5.23, kernels/ops/attention/dsv4/kv_layout.py: bytes of one compressed entry by SGLANG_DSV4_KV_LAYOUT, and of
# one index key. Sources of ratio 2, 2, 2 and 1 hold 2.5 entries a token. The window pool comes on top, per request.
ENTRY_BYTES = {"v4": 584, "v41": 288}
INDEX_KEY_BYTES = 68
ENTRIES_PER_TOKEN = 2.5
_DEFAULT_LAYOUT = "v4"
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def planned_bytes(plan: Plan) -> dict[str, float]:
    """Return KV bytes per token and GPU by engine; an engine whose model is not laid out yet, or unknown, is left out."""
    try:
        config = json.loads((Path(plan.model.path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found = {engine.name: bytes_per_token(config, engine) for engine in plan.engines}
    return {name: value for name, value in found.items() if value is not None}


def bytes_per_token(config: dict[str, Any], engine: Service) -> float | None:
    """Return KV bytes per token of the model that `config` (config.json) describes; None for an unknown kind of cache."""
    architectures = " ".join(config.get("architectures") or ())
    if "DeepseekV4" in architectures:
        layout = engine.env.get("SGLANG_DSV4_KV_LAYOUT", _DEFAULT_LAYOUT)
        entry = ENTRY_BYTES.get(layout)
        return None if entry is None else ENTRIES_PER_TOKEN * (entry + INDEX_KEY_BYTES)
    try:
        heads, layers = config["num_key_value_heads"], config["num_hidden_layers"]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    except KeyError:
        return None
    dtype = _flag(engine, "--dtype", "auto")
    width = _DTYPE_BYTES.get(config.get("torch_dtype", "") if dtype == "auto" else dtype)
    tp = int(_flag(engine, "--tp-size", "1"))
    # Keys and values; heads are split over the GPUs, at least one each.
    return None if width is None else float(2 * layers * max(1, heads // tp) * head_dim * width)


def _flag(engine: Service, name: str, default: str) -> str:
    return engine.argv[engine.argv.index(name) + 1] if name in engine.argv else default
