"""V4.1's config.json at a size that one GPU serves: real widths, every layer kind, fewer layers and experts."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib

_HEADS = 64
_OUTPUT_GROUPS = 8
_WHOLE_EXPERT = 2304


@dataclasses.dataclass(frozen=True)
class Layers:
    """Which layer does what: compression ratio of each, owners of global KV, selectors, and the one that publishes candidates."""

    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    candidate_source: int


LAYERS = {
    # Window only (0, 1), ratio-2 source (2) and reuse (3), ratio-1 source that publishes candidates (4), and a consumer that
    # selects anew among them (5): one of every kind.
    6: Layers((0, 0, 2, 2, 1, 1), (2, 4), (2, 4, 5), 4),
    # V4.1-Flash's own: deploy/shapes/deepseek-v4.1-flash.json; the last KV source publishes candidates.
    40: Layers((0,) * 2 + (2,) * 18 + (1,) * 20, (2, 8, 14, 20), (2, 8, 14, 20, 24, 28, 32, 36), 20),
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """What is reduced.

    `heads` is a rank's share of the 64 and `expert_width` its share of 2,304 columns: 16 and 576 give the shapes of one TP4 rank
    on a single GPU. `layers` is a key of LAYERS.
    """

    heads: int = 16
    experts: int = 16
    candidate_blocks: int = 2048
    context: int = 131072
    layers: int = 6
    expert_width: int = _WHOLE_EXPERT

    def config(self) -> dict[str, Any]:
        """config.json of the model.

        Values the real checkpoint has not been read for (thetas, YaRN factor, routed scaling) are V4's.
        """
        layers = LAYERS[self.layers]
        return {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "vocab_size": 129280,
            "hidden_size": 5120,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "qk_nope_head_dim": 448,
            "qk_rope_head_dim": 64,
            "v_head_dim": 512,
            "kv_lora_rank": 512,
            "q_lora_rank": 1280,
            "o_lora_rank": 1024,
            "o_groups": self.heads * _OUTPUT_GROUPS // _HEADS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "q_head_norm": False,
            "tie_word_embeddings": False,
            "max_position_embeddings": self.context,
            "rope_theta": 10000,
            "compress_rope_theta": 40000,
            "rope_scaling": {
                "type": "yarn",
                "rope_type": "yarn",
                "factor": 16,
                "beta_fast": 32,
                "beta_slow": 1,
                "original_max_position_embeddings": 65536,
            },
            "window_size": 128,
            "sliding_window": 128,
            "compress_ratios": list(layers.ratios),
            "kv_source_layer_ids": list(layers.kv_sources),
            "index_source_layer_ids": list(layers.index_sources),
            "index_n_heads": 32,
            "index_head_dim": 128,
            "index_topk": 512,
            "candidate_source_layer_id": layers.candidate_source,
            "candidate_topk_blocks": self.candidate_blocks,
            "candidate_block_size": 8,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "hc_pre_from_prev_sublayer": True,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": self.expert_width,
            "intermediate_size": self.expert_width,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 0,
            "moe_layer_freq": 1,
            "num_hash_layers": 0,
            "n_hash_layers": 0,
            "engram_layer_ids": [],
            "vision_n_layers": 0,
            "image_token_id": 129264,
            "num_nextn_predict_layers": 0,
            "quantization_config": {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "scale_fmt": "ue8m0",
                "weight_block_size": [32, 32],
            },
        }


def write_model(directory: pathlib.Path, scale: Scale) -> pathlib.Path:
    """Write config.json into `directory`, created if missing, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(scale.config(), indent=1), encoding="utf-8")
    return directory
