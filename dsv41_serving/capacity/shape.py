"""The sizes of a model, from its config.json, or from `deploy/shapes` while the checkpoint is not here.

The stored shape of V4.1-Flash is put together from SGLang 0.5.23's kernels and tests and from published descriptions; the
count of routed experts (384) is inferred from its router. A checkpoint that is on disk always wins over it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dsv41_serving.errors import InputError
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from pathlib import Path

_V41 = "DeepseekV4"  # the architecture is written DeepseekV41ForCausalLM or DeepseekV4ForCausalLM
_ENGRAM_ROW_BYTES = 264  # 256 fp8 values and 8 scales (SGLang 0.5.23, srt/layers/engram.py)


class ModelShape(BaseModel):
    """What sizes depend on. Names as in config.json; a dense model has no experts, ratios or Engram tables."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0
    intermediate_size: int = 0
    tie_word_embeddings: bool = False
    torch_dtype: str = "bfloat16"
    q_lora_rank: int = 0
    o_groups: int = 1
    o_lora_rank: int = 0
    sliding_window: int = 0
    compress_ratios: tuple[int, ...] = ()
    kv_source_layer_ids: tuple[int, ...] = ()
    index_source_layer_ids: tuple[int, ...] = ()
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 0
    hc_mult: int = 0
    n_routed_experts: int = 0
    n_shared_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    engram_layer_ids: tuple[int, ...] = ()
    engram_rows_per_table: int = 0
    engram_row_bytes: int = _ENGRAM_ROW_BYTES
    engram_columns: int = 24
    engram_head_dim: int = 256
    draft_stages: int = 0
    origin: str = ""
    """The file it was read from."""

    @property
    def is_v41(self) -> bool:
        """Whether this is V4.1's architecture, with compressed KV sources and a window."""
        return any(name.startswith(_V41) for name in self.architectures)

    @property
    def source_ratios(self) -> tuple[int, ...]:
        """Compression ratio of every layer that owns global KV."""
        return tuple(self.compress_ratios[layer] for layer in self.kv_source_layer_ids)


def read_shape(checkpoint: Path | None, manifest: str) -> ModelShape:
    """Return the shape of the model in `checkpoint`, or the stored one of `manifest` when it is not there.

    Raises InputError when neither exists or a size is missing.
    """
    path = checkpoint / "config.json" if checkpoint else None
    if path is None or not path.is_file():
        path = data_dir("deploy") / "shapes" / f"{manifest}.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = {**values, **(values.get("text_config") or {}), "origin": str(path)}
        values.setdefault("draft_stages", len(values.get("dspark_target_layer_ids") or ()))
        if not values.get("head_dim"):
            values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
        return ModelShape.model_validate({key: value for key, value in values.items() if value is not None})
    except FileNotFoundError:
        raise InputError(
            f"nothing is known of the sizes of '{manifest}'",
            where=str(path),
            remedy="set model.path to the checkpoint, or prepare the embedded model with `dsv41 up` once",
        ) from None
    except (ValueError, KeyError, ValidationError) as error:
        raise InputError(f"is not a model description: {error}", where=str(path), remedy="restore the file") from None
