"""The estimate against lines others published and engines reported, and its own arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv41_serving.capacity.engine import EngineSettings, read_settings
from dsv41_serving.capacity.estimate import GIB, GPU_MEMORY, LOADED_BYTES, estimate_engine, estimate_node
from dsv41_serving.capacity.measured import predict
from dsv41_serving.capacity.pools import ENTRIES, INDEX_KEY, hand_off_bytes, size_pools, window_tokens
from dsv41_serving.capacity.report import list_shortages
from dsv41_serving.capacity.shape import ModelShape, read_shape
from dsv41_serving.capacity.weights import pad_intermediate, weigh
from dsv41_serving.spec import load_spec

RESULTS = Path(__file__).parents[3] / "deploy/results"
FLASH = read_shape(None, "deepseek-v4.1-flash")
# The six-layer V4.1 that was measured: one source of ratio 2, one of ratio 1, 16 experts, no tables.
SIX_LAYERS = ModelShape.model_validate(
    {
        **json.loads(
            (Path(__file__).parents[3] / "deploy/shapes/deepseek-v4.1-flash.json").read_text(encoding="utf-8")
        ),
        "num_hidden_layers": 6,
        "compress_ratios": (0, 0, 2, 2, 1, 1),
        "kv_source_layer_ids": (2, 4),
        "index_source_layer_ids": (2, 4, 5),
        "n_routed_experts": 16,
        "engram_layer_ids": (),
    }
)
SMOLLM2 = ModelShape(
    architectures=("LlamaForCausalLM",),
    vocab_size=49216,
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    intermediate_size=1536,
)


def settings(profile: str, engine: str, *overrides: str, **changes: Any) -> EngineSettings:
    return replace(read_settings(load_spec(profile=profile, overrides=overrides).spec, engine), **changes)


H200 = settings("h200x8", "decode")
ONE_H200 = replace(H200, role="aggregated", tp=1, engram="none", radix_cache=True)


# --- published and measured sizing lines ----------------------------------------------------------------------------


def test_weights_of_an_h200_rank_are_those_the_recipe_prints() -> None:
    """Dynamo's H200 recipe (TP4, tables in HBM) prints 119.83 GB, SGLang's GB being GiB."""
    predicted = (weigh(FLASH, H200).gpu + LOADED_BYTES) / GIB
    assert predicted == pytest.approx(119.83, rel=0.03)


@pytest.mark.parametrize(("fp4", "reported"), [(True, 5.8), (False, 7.2)])
def test_weights_of_the_six_layer_model_on_one_h200(*, fp4: bool, reported: float) -> None:
    """Measured on NVIDIA H200, SGLang 0.5.23, 2026-11-29: 5.8 GiB with FP4 experts, 7.2 with FP8."""
    predicted = (weigh(SIX_LAYERS, replace(ONE_H200, fp4_experts=fp4)).gpu + LOADED_BYTES) / GIB
    assert predicted == pytest.approx(reported, rel=0.03)


def test_bytes_a_token_of_the_six_layer_model() -> None:
    """SGLang's start-up line on NVIDIA H200 (0.5.23, 2026-11-29): bytes_per_full_token=979.5."""
    assert size_pools(SIX_LAYERS, ONE_H200).bytes_per_token == 979.5


def test_bytes_a_token_of_v41() -> None:
    """890 as the model is described, 1632.5 in the layout every GPU but 10.x gets."""
    pools = size_pools(FLASH, H200)
    assert pools.logical_bytes_per_token == 890.0
    assert pools.bytes_per_token == 1632.5
    assert (pools.main_bytes_per_token, pools.index_bytes_per_token) == (1462.5, 170.0)


def test_a_rank_of_forty_layers_is_foretold_within_three_per_cent() -> None:
    """What prefill and decode of profile h200x2-rank reported on two H200, in the committed record."""
    record = json.loads((RESULTS / "rank/capacity.json").read_text(encoding="utf-8"))
    shape = read_shape(None, "v41-rank")
    for name, reported in record["reported"].items():
        found = predict(estimate_engine(shape, settings("h200x2-rank", name), record["gpu_memory_bytes"]))
        errors = {quantity: found[quantity] / value - 1 for quantity, value in reported.items()}
        assert set(errors) == {"pool tokens", "window tokens", "weights GiB"}
        assert errors["window tokens"] == 0.0
        assert max(map(abs, errors.values())) < 0.03


def test_hand_off_of_four_prompts_of_the_six_layer_model() -> None:
    """Counted by NIXL between two NVIDIA H200: two prompts of 4,096 and two of 16,384 tokens, 41.69 MiB, states aside."""
    decode = replace(ONE_H200, role="decode")
    ring = 2 * 2 * 512 * 4
    total = sum(2 * (hand_off_bytes(SIX_LAYERS, decode, prompt) - ring) for prompt in (4096, 16384))
    assert total / 2**20 == pytest.approx(41.69, abs=0.005)


def test_the_pool_of_four_rtx_pro_6000_lies_between_no_draft_and_a_full_one() -> None:
    """local-ai-registry#55: TP4, memory .95, chunk 2048, 8 running, DSpark: 4.2 million tokens.

    How many experts a stage of the draft has is in no source: none and all 384 bound it.
    """
    engine = settings("rtxpro6000x8", "prefill", max_total_tokens=None)
    without = estimate_engine(FLASH, engine, GPU_MEMORY["12.0"]).tokens
    full = estimate_engine(FLASH, replace(engine, draft_tokens=6), GPU_MEMORY["12.0"]).tokens
    assert full < 4_200_000 < without


def test_the_toy_model_costs_what_the_embedded_engine_reports() -> None:
    """SGLang 0.5.23 on a CPU: 32,768 tokens, kv_cache_memory_usage_gb 0.7031464576721191."""
    found = estimate_engine(SMOLLM2, settings("embedded", "decode"), None)
    assert found.tokens == 32768
    assert found.pool_bytes / GIB == pytest.approx(0.7031464576721191, rel=1e-9)


def test_the_toy_model_weighs_what_its_file_says() -> None:
    """The tensors of model.safetensors end at this offset."""
    assert weigh(SMOLLM2, settings("embedded", "decode")).gpu == 325_800_576


# --- arithmetic -----------------------------------------------------------------------------------------------------


def test_entries_are_those_of_the_kernels() -> None:
    """One truth about bytes: the kernels' layouts, which need torch, and the planner's, which must not."""
    layout = pytest.importorskip("dsv41_kernels.layout", reason="torch is not installed: make env")
    for name, entry in ENTRIES.items():
        kernel = layout.LAYOUTS[name]
        assert (entry.bytes, entry.align) == (kernel.entry_bytes, kernel.page_align)
        assert [entry.page_bytes(rows) for rows in (64, 128, 256)] == [
            kernel.page_bytes(rows) for rows in (64, 128, 256)
        ]
    assert INDEX_KEY.bytes == layout.INDEX_KEY.entry_bytes


def test_page_padding_of_the_v4_layout() -> None:
    assert ENTRIES["v4"].page_bytes(256) == 149760
    assert ENTRIES["v4"].padded(128) == 585.0


@pytest.mark.parametrize(
    ("capability", "tp", "ep", "columns"),
    [("9.0", 4, 1, 576), ("9.0", 8, 1, 320), ("10.0", 4, 1, 640), ("10.0", 8, 1, 384), ("12.0", 8, 8, 2304)],
)
def test_experts_are_padded_as_their_runner_does(capability: str, tp: int, ep: int, columns: int) -> None:
    engine = replace(H200, compute_capability=capability, tp=tp, ep=ep)
    assert pad_intermediate(2304, engine) == columns


def test_the_window_pool_follows_the_cap_of_running_requests() -> None:
    """128 window + 128 until eviction + a page to align + a page ahead for each of 64; prefill adds four tails for each, and chunks."""
    assert window_tokens(FLASH, H200) == 64 * (128 + 128 + 256 + 256)
    prefill = settings("h200x8", "prefill")
    tails = 4 * 64 * (128 + 256)
    assert window_tokens(FLASH, prefill) == window_tokens(FLASH, H200) + tails + 2 * 4096 + 256
    assert window_tokens(FLASH, replace(prefill, overlap=False)) == window_tokens(FLASH, H200) + tails + 4096 + 256
    assert window_tokens(FLASH, replace(prefill, radix_cache=False)) == window_tokens(FLASH, prefill) - tails
    assert window_tokens(FLASH, replace(H200, prefix_tails=10)) == window_tokens(FLASH, H200) + 3840
    assert window_tokens(FLASH, replace(H200, extra_slots=10)) == window_tokens(FLASH, H200) + 3840


def test_the_layout_decides_what_a_token_costs() -> None:
    costs = {name: size_pools(FLASH, replace(H200, layout=name)).bytes_per_token for name in ENTRIES}
    assert costs == {"v4": 1632.5, "v41": 2.5 * (528 + 68), "v41_fp4": 890.0}


@pytest.mark.parametrize(
    ("override", "layout"),
    [
        ("engine.env.SGLANG_DSV4_KV_LAYOUT=v4", "v4"),
        ("engine.env.SGLANG_DSV4_KV_LAYOUT=v41", "v41_fp4"),
        ("engine.args.dsv4-attn-backend=flashmla_mega", "v41_fp4"),
    ],
)
def test_the_layout_is_read_from_the_description(override: str, layout: str) -> None:
    assert settings("b200x8", "decode", override).layout == layout


def test_tables_lie_where_the_description_says() -> None:
    placed = {
        where: (
            weigh(FLASH, replace(H200, engram=where)).engram_gpu,
            weigh(FLASH, replace(H200, engram=where)).engram_host,
        )
        for where in ("none", "hbm", "host_shared", "host_per_rank")
    }
    tables = 2 * 384_000_000 * 264
    assert placed == {
        "none": (0, 0),
        "hbm": (tables // 4, 0),
        "host_shared": (0, tables),
        "host_per_rank": (0, 4 * tables),
    }


def test_sessions_are_bound_by_the_pool_and_by_the_cap() -> None:
    found = estimate_engine(FLASH, H200, GPU_MEMORY["9.0"])
    assert found.sessions(4096) == 64
    assert found.sessions(131072) == found.tokens // 131072
    assert found.sessions(found.tokens + 1) == 0


def test_a_part_of_a_page_takes_a_whole_one() -> None:
    engine = replace(H200, max_running_requests=10_000, max_total_tokens=2560, memory_fraction=0.95)
    found = estimate_engine(FLASH, replace(engine, prefix_tails=0, max_running_requests=8), GPU_MEMORY["9.0"])
    assert found.tokens == 2560
    assert (found.sessions(512), found.sessions(513)) == (5, 3)


def test_what_cannot_fit_is_short_by_the_difference() -> None:
    """The pool must hold one request of the longest context."""
    small = 125 * GIB
    found = estimate_engine(FLASH, H200, small)
    needed = weigh(FLASH, H200).gpu + LOADED_BYTES + found.pools.bytes_of(H200.context)
    assert found.short_bytes == needed - found.static_bytes
    assert found.tokens < 0
    assert found.sessions(4096) == 0


def test_graphs_and_the_temporary_must_fit_beside_the_pool() -> None:
    """A pool that fills everything leaves no room for index scoring over a long prefix; a smaller one does."""
    engine = settings("rtxpro6000x8", "prefill", max_total_tokens=None)
    full = estimate_engine(FLASH, engine, GPU_MEMORY["12.0"])
    assert full.transient_bytes == 14 * 2048 * 262144
    assert full.short_bytes == full.beside_bytes - full.spare_bytes > 0
    capped = estimate_engine(FLASH, replace(engine, max_total_tokens=full.safe_tokens), GPU_MEMORY["12.0"])
    assert (capped.short_bytes, capped.tokens) == (0, full.safe_tokens)


def test_graphs_are_those_that_were_measured() -> None:
    """On NVIDIA H200: seven batch sizes of forty layers took 2.15 GiB, three of six layers 0.10; tails 1.63 and 1.69."""
    rank = read_shape(None, "v41-rank")
    memory = GPU_MEMORY["9.0"]
    pair = {
        name: estimate_engine(rank, settings("h200x2-rank", name), memory) for name in ("prefill", "decode", "replica0")
    }
    assert pair["decode"].decode_graph_bytes / GIB == pytest.approx(2.15, rel=0.001)
    assert (pair["prefill"].decode_graph_bytes, pair["decode"].tail_graph_bytes) == (0, 0)
    assert 1.63 <= pair["prefill"].tail_graph_bytes / GIB < 1.63 * 1.05
    whole = pair["replica0"]
    assert whole.beside_bytes == whole.decode_graph_bytes + whole.tail_graph_bytes + whole.transient_bytes
    assert whole.decode_graph_bytes == pair["decode"].decode_graph_bytes
    three = estimate_engine(SIX_LAYERS, replace(ONE_H200, decode_graphs=3), memory)
    assert 0.10 <= three.decode_graph_bytes / GIB < 0.15
    off = settings("h200x2-rank", "decode", "engines.decode.args.disable-cuda-graph=true")
    assert estimate_engine(rank, off, memory).decode_graph_bytes == 0
    assert estimate_engine(SMOLLM2, settings("embedded", "decode"), None).decode_graph_bytes == 0


@pytest.mark.parametrize("profile", ["h200x8", "b200x8", "gb300x4", "rtxpro6000x8"])
def test_what_a_profile_says_of_its_weights_is_what_the_planner_finds(profile: str) -> None:
    """Within five per cent: the plan's memory budget and the estimate must not contradict each other."""
    spec = load_spec(profile=profile).spec
    engine = next(name for name, each in spec.engines.items() if each.tp == 4)
    predicted = weigh(FLASH, read_settings(spec, engine)).gpu + LOADED_BYTES
    assert spec.memory.weights_bytes_per_gpu == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("profile", ["h200x8", "b200x8", "gb300x4", "rtxpro6000x8"])
def test_every_shape_of_every_profile_fits_its_board(profile: str) -> None:
    spec = load_spec(profile=profile).spec
    for name in spec.shapes:
        node = estimate_node(spec, FLASH, GPU_MEMORY[spec.engine.compute_capability], name)
        assert node.short == {}, name
        assert all(each.sessions(spec.engine.context_length) >= 1 for each in node.engines)


def test_two_replicas_answer_with_twice_the_kv_and_the_pair_hands_over() -> None:
    spec = load_spec(profile="h200x8").spec
    pair, replicas, whole = (estimate_node(spec, FLASH, GPU_MEMORY["9.0"], name) for name in ("pd", "replicas", "tp8"))
    assert replicas.generating_tokens == 2 * replicas.engines[0].tokens
    assert pair.generating_tokens == pair.engines[1].tokens
    assert whole.generating_tokens > replicas.generating_tokens
    assert pair.hand_off(FLASH, 32768) > 0
    assert replicas.hand_off(FLASH, 32768) == whole.hand_off(FLASH, 32768) == 0


# --- staging of the packed hand-off -----------------------------------------------------------------------------------

PACKED = ("handoff={packed=true, slots=8, slot_mib=64}",)


def test_staging_is_counted_on_both_sides_and_only_where_it_is_packed() -> None:
    node = estimate_node(load_spec(profile="h200x8", overrides=PACKED).spec, FLASH, GPU_MEMORY["9.0"])
    plain = estimate_node(load_spec(profile="h200x8").spec, FLASH, GPU_MEMORY["9.0"])
    assert [each.staging_bytes for each in node.engines] == [8 * 64 << 20] * 2
    assert [each.staging_bytes for each in plain.engines] == [0, 0]
    for packed, stock in zip(node.engines, plain.engines, strict=True):
        assert packed.tokens == stock.tokens  # SGLang sizes its pools before the first peer registers
        assert packed.beside_bytes - stock.beside_bytes == 8 * 64 << 20
        assert packed.safe_tokens < stock.safe_tokens
    aggregated = load_spec(profile="h200x8", overrides=(*PACKED, 'shape="replicas"')).spec
    assert [each.staging_bytes for each in estimate_node(aggregated, FLASH, GPU_MEMORY["9.0"]).engines] == [0, 0]


def test_staging_that_does_not_fit_is_refused_and_named() -> None:
    """The largest that the table allows: 64 slots of 1 GiB."""
    spec = load_spec(profile="h200x8", overrides=("handoff={packed=true, slots=64, slot_mib=1024}",)).spec
    node = estimate_node(spec, FLASH, GPU_MEMORY["9.0"])
    assert set(node.short) == {"prefill", "decode"}
    assert all("lower handoff.slots or handoff.slot_mib" in line for line in list_shortages(node))


def test_on_a_cpu_weights_and_pools_are_host_memory() -> None:
    spec = load_spec(profile="embedded").spec
    for engine in estimate_node(spec, SMOLLM2, None).engines:
        beside = spec.memory.host_bytes_per_engine
        assert engine.host_bytes == beside + engine.weights.gpu + engine.pool_bytes


def test_on_a_cpu_staging_is_host_memory() -> None:
    packed, plain = (
        estimate_node(load_spec(profile="embedded", overrides=overrides).spec, SMOLLM2, None)
        for overrides in (PACKED, ())
    )
    assert packed.host_bytes - plain.host_bytes == 2 * (8 * 64 << 20)
