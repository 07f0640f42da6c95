"""The synthetic model and the comparison of answers; the servers themselves need a GPU."""

import ast
import gzip
import importlib.util
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

from dsv41_kernels import codec
from dsv41_kernels.serve import compare, profile, rank, study, table, verdict, weights, workload
from dsv41_kernels.serve.model import Scale
from dsv41_kernels.serve.server import Variant

ROOT = pathlib.Path(__file__).parents[2]
GAINS = weights.Gains(experts=0.125)


class Layer(torch.nn.Module):
    """One of each kind of tensor that the engine's V4.1 model holds."""

    def __init__(self) -> None:
        super().__init__()
        made = {
            "norm.weight": torch.empty(256),
            "wq.weight": torch.empty(64, 512, dtype=torch.float8_e4m3fn),
            "wq.weight_scale_inv": torch.empty(2, 16),
            "experts.w2_weight": torch.empty(3, 64, 256, dtype=torch.float8_e4m3fn),
            "experts.w2_weight_scale_inv": torch.empty(3, 2, 8),
            "w13_weight": torch.empty(3, 64, 128, dtype=torch.uint8),
            "w13_weight_scale_inv": torch.empty(3, 64, 8, dtype=torch.uint8),
            "gate.weight": torch.empty(16, 1024),
            "hc_attn_scale": torch.empty(3),
            "token_map": torch.arange(7),
        }
        for name, tensor in made.items():
            self.register_buffer(name.replace(".", "__"), tensor)

    def state_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {name.replace("__", "."): tensor for name, tensor in super().state_dict().items()}


def filled(seed: int) -> dict[str, torch.Tensor]:
    layer = Layer()
    weights.initialize(layer, seed, GAINS)
    return layer.state_dict()


def test_matrices_have_unit_gain_whatever_their_type() -> None:
    tensors = filled(1)
    blocks = tensors["wq.weight_scale_inv"].repeat_interleave(32, 0).repeat_interleave(32, 1)
    gain = (tensors["wq.weight"].float() * blocks).std() * math.sqrt(512)
    assert 0.7 < gain < 1.45  # a power-of-two scale is within a factor of sqrt(2)
    blocks = tensors["experts.w2_weight_scale_inv"].repeat_interleave(32, 1).repeat_interleave(32, 2)
    assert 0.7 < (tensors["experts.w2_weight"].float() * blocks).std() * math.sqrt(256) * 8 < 1.45
    packed = tensors["w13_weight"]
    codes = codec.unpack_nibbles(packed)
    scales = torch.exp2(tensors["w13_weight_scale_inv"].float() - 127).repeat_interleave(32, 2)
    assert 0.7 < (codec.decode_e2m1(codes) * scales).std() * math.sqrt(256) < 1.45
    assert 0.95 < tensors["gate.weight"].std() * math.sqrt(1024) < 1.05


def test_a_fused_projection_holds_the_same_model_as_two() -> None:
    fused = torch.empty(1024, 64)
    weights.fill("layers.2.compressor.wkv_gate.weight", fused, {}, 1, GAINS)
    parts = []
    for part in ("wkv", "wgate"):
        parts.append(torch.empty(512, 64))
        weights.fill(f"layers.2.compressor.{part}.weight", parts[-1], {}, 1, GAINS)
    assert torch.equal(fused, torch.cat(parts))


def matrix(name: str, *shape: int, gains: weights.Gains = GAINS, tensors: dict | None = None) -> torch.Tensor:
    """The synthetic matrix `name` in float32."""
    made = torch.empty(*shape)
    weights.fill(name, made, {} if tensors is None else tensors, 1, gains)
    return made


def normalise(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.square().mean(dim=-1, keepdim=True).sqrt()


def test_a_token_is_followed_by_one_of_its_family() -> None:
    """The likeliest tokens after each token are as many as a family has, alike within a class, and far above all others."""
    embeddings = matrix("model.embed_tokens.weight", 512, 1024)
    output = matrix("lm_head.weight", 512, 1024, tensors={"model.embed_tokens.weight": embeddings})
    logits = normalise(embeddings) @ output.T
    likeliest = logits.topk(3, dim=1)
    assert (likeliest.values[:, 1] - likeliest.values[:, 2]).min() > GAINS.certainty
    families = likeliest.indices[:, :2].sort(dim=1).values
    assert torch.equal(families[:256], families[256:])
    assert len(families.flatten().unique()) == 512  # every token follows some class


def test_output_rows_need_embeddings_of_their_shape() -> None:
    with pytest.raises(ValueError, match="need embeddings of the same shape"):
        matrix("lm_head.weight", 512, 64, tensors={"model.embed_tokens.weight": torch.empty(512, 32)})


def test_attention_and_index_look_for_the_same_entries() -> None:
    """Keys of both carry a token's salience, and queries of both look for it, in channels that are not rotated."""
    embeddings = matrix("model.embed_tokens.weight", 400, 1024)
    hidden = normalise(embeddings)
    salience = hidden @ torch.tensor([1.0, -1.0]).repeat(512)
    entries = normalise(hidden @ matrix("layers.4.self_attn.compressor.wkv.weight", 512, 1024).T)
    query = normalise(hidden @ matrix("layers.4.self_attn.wq_a.weight", 256, 1024).T)
    attention = (query @ matrix("layers.4.self_attn.wq_b.weight", 1024, 256).T).view(400, 2, 512)
    keys = normalise(entries @ matrix("layers.4.self_attn.indexer.wk.weight", 128, 512).T)
    index = (query @ matrix("layers.4.self_attn.indexer.wq_b.weight", 4096, 256).T).view(400, 32, 128)
    weight = hidden @ matrix("layers.4.self_attn.indexer.weights_proj.weight", 32, 1024).T
    assert (weight > 0).float().mean() > 0.9
    scores = (torch.einsum("qhd,kd->qkh", index[:50], keys).relu() * weight[:50, None]).sum(dim=2)
    logits = torch.einsum("qhd,kd->qhk", attention[..., :448], entries[:, :448])
    order = salience.argsort(descending=True)
    assert scores[:, order[:50]].mean() > 3 * scores[:, order[200:]].mean()
    heavy = (logits / math.sqrt(512)).softmax(dim=2)
    selected = scores.topk(100, dim=1).indices[:, None].expand(-1, 2, -1)
    assert heavy[:50].gather(2, selected).sum(dim=2).mean() > 0.9
    plain = weights.Gains(focus=0, index=0)
    unguided = (query @ matrix("layers.4.self_attn.wq_b.weight", 1024, 256, gains=plain).T).view(400, 2, 512)
    flat = (torch.einsum("qhd,kd->qhk", unguided[..., :448], entries[:, :448]) / math.sqrt(512)).softmax(dim=2)
    assert flat[:50].gather(2, selected).sum(dim=2).mean() < 0.5


def test_gains_are_read_and_refused_by_name() -> None:
    assert weights.Gains.read("attention=0.5,family=4") == weights.Gains(attention=0.5, family=4)
    assert weights.Gains.read("") == weights.Gains()
    for text, words in (
        ("depth=1", "no gain 'depth'"),
        ("index=x", "index=x is not a number"),
        ("family=0", "too small"),
    ):
        with pytest.raises(ValueError, match=words):
            weights.Gains.read(text)


def test_a_gain_of_zero_takes_a_part_away() -> None:
    tensors = {
        "wo_b.weight": torch.empty(64, 64, dtype=torch.float8_e4m3fn),
        "wo_b.weight_scale_inv": torch.empty(2, 2),
    }
    for name, tensor in tensors.items():
        weights.fill(
            f"attn.{name}",
            tensor,
            {f"attn.{key}": value for key, value in tensors.items()},
            1,
            weights.Gains(attention=0),
        )
    assert 0 < tensors["wo_b.weight_scale_inv"].max() < 1e-12


def test_vectors_are_neutral_and_integers_untouched() -> None:
    tensors = filled(1)
    assert abs(tensors["norm.weight"].mean() - 1) < 0.05
    assert tensors["hc_attn_scale"].tolist() == [1, 1, 1]
    assert tensors["token_map"].tolist() == list(range(7))


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    first, again, other = filled(1), filled(1), filled(2)
    for name, tensor in first.items():
        assert torch.equal(tensor.view(torch.uint8), again[name].view(torch.uint8)), name
    assert not torch.equal(first["gate.weight"], other["gate.weight"])


def test_a_seed_that_is_no_number_ends_the_process_with_one_line() -> None:
    environment = {**os.environ, weights.VARIABLE: "one"}
    run = subprocess.run(
        [sys.executable, "-c", "from dsv41_kernels.serve.weights import register; register()"],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert run.stderr == "DSV41_SYNTHETIC_SEED='one' is not a whole number; set one, or unset it\n"


def test_a_step_is_timed_while_all_requests_decode() -> None:
    early = workload.Arrival(0.0, [(1.0, 1), (2.0, 2), (2.5, 3), (3.0, 4), (3.5, 5)])
    late = workload.Arrival(0.0, [(2.0, 1), (2.5, 2), (3.0, 3), (3.5, 4), (9.0, 5)])
    assert workload.step_time([early, late]) == 0.5


def test_a_profile_counts_kernels_alone(tmp_path: pathlib.Path) -> None:
    """Durations are summed; a kernel launched early that waits for its predecessor gets only the time after it to itself."""
    events = [{"cat": "cpu_op", "name": "c", "ts": 0.0, "dur": 99.0}]
    for step in range(12):
        start = 100.0 * step
        events += [
            {"cat": "kernel", "name": "a", "ts": start, "dur": 12.0},
            {"cat": "kernel", "name": "a", "ts": start + 20, "dur": 12.0},
            {"cat": "kernel", "name": "b", "ts": start + 25, "dur": 9.0},
        ]
    found = profile.summarise({"traceEvents": events[::-1]})
    assert (found["us_per_step"], found["busy_us_per_step"], found["launches_per_step"]) == (33.0, 26.0, 3.0)
    assert found["largest"] == [["a", 24.0, 2.0, 24.0], ["b", 9.0, 1.0, 2.0]]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert profile.read_trace(path) == found


def test_what_is_replaced_bounds_the_gain() -> None:
    """Overlaps counted once where recorded; a list that ends early counts what it lacks as replaced."""
    stock = {"us_per_step": 100.0, "busy_us_per_step": 60.0}
    stock["largest"] = [["kept", 50.0, 2.0, 30.0], ["halved", 20.0, 4.0, 20.0], ["gone", 30.0, 1.0, 10.0]]
    ours = {
        "us_per_step": 90.0,
        "largest": [["kept", 50.0, 2.0, 30.0], ["halved", 10.0, 2.0, 10.0], ["new", 9.0, 1.0, 9.0]],
    }
    assert table.replaced(stock, ours) == 20.0
    del stock["busy_us_per_step"]
    stock["largest"] = [entry[:3] for entry in stock["largest"][:2]]
    assert table.replaced(stock, ours) == 40.0


def test_the_table_gives_stock_over_variant(tmp_path: pathlib.Path) -> None:
    common = {
        "gpu": "NVIDIA H200",
        "driver": "1",
        "torch": "2",
        "triton": "3",
        "sglang": "4",
        "date": "d",
        "commit": "c",
    }
    common |= {"command": "x", "heads": 64, "gpus": "0", "context": 4096, "batch": 1, "kind": "prefill"}
    common |= {"note": "nothing else ran"}
    records = [
        {
            **common,
            "variant": name,
            "kernels": kernels,
            "median_ms": time,
            "lowest_ms": time - 1,
            "highest_ms": time + 1,
        }
        for name, kernels, time in (("stock", "all=off", 30.0), ("ours", "all=on", 20.0))
    ]
    answered = {
        "against": "stock",
        "answers": 3,
        "equal": 2,
        "tokens": 144,
        "differences": [{"position": 40, "margin_nats": 0.02}],
    }
    distance = {"prefill_logprob_difference_nats": {"median": 0.001, "p90": 0.01, "largest": 0.5}}
    profiled = {"us_per_step": 200.0, "launches_per_step": 90.0, "largest": [["fused_moe", 50.0, 12.0]]}
    alone = {"us_per_step": 300.0, "busy_us_per_step": 250.0, "launches_per_step": 99.0, "context": 4096}
    alone["largest"] = [["fused_moe", 50.0, 12.0, 40.0], ["flash", 80.0, 6.0, 50.0]]
    shadow = {
        "samples": {
            'dsv41_kernel_shadow_checks_total{op="compress"}': 7.0,
            'dsv41_kernel_shadow_exceeded_total{op="compress"}': 2.0,
            'dsv41_kernel_shadow_max_relative_error{op="compress"}': 0.0325,
            'dsv41_kernel_shadow_checks_created{op="compress"}': 1.0,
        }
    }
    records += [
        {
            **common,
            "layers": 40,
            "kernels": "all=on",
            "variant": "pair",
            "gpus": "2/3",
            **answered,
            **distance,
            "kind": "answers",
        },
        {**common, "kernels": "all=off", "variant": "stock", **alone, "kind": "profile"},
        {**common, "kernels": "all=on", "variant": "ours", **profiled, "kind": "profile"},
        *(
            {
                **common,
                "kernels": "x",
                "variant": name,
                "median_ms": 0.4,
                "lowest_ms": 0.4,
                "highest_ms": 0.4,
                "kind": "decode",
            }
            for name in ("stock", "ours")
        ),
        {**common, "kernels": "all=shadow", "variant": "shadow", "gains": "index=0", **shadow, "kind": "shadow"},
    ]
    records[-1]["command"] = "another run"
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    lines = table.write_table(tmp_path)
    assert "- pair: `DSV41_KERNELS=all=on`, prefill and decode on a GPU each" in lines
    assert "- shadow: `DSV41_KERNELS=all=shadow`, weights with index=0" in lines
    assert "- meanwhile: nothing else ran" in lines
    assert lines.index("- `another run`") == lines.index("- `x`") + 1
    judged = "different from stock: 6% of tokens follow a difference; no control says how many rounding would change"
    assert f"| pair | 2 of 3 | 144 | 40 (0.02) | 0.001, 0.01, 0.5 | {judged} |" in lines
    assert "| `fused_moe` | 50.0 | not recorded | 12.0 | 25% |" in lines
    assert "| `flash` | 80.0 | 50.0 | 6.0 | 27% |" in lines
    assert (
        "- stock: a step of 400 us after 4096 tokens has work for the GPU in 250 us; in the other 150 us no kernel runs"
        in lines
    )
    assert "- ours replaces at most 210 us of stock's step of 400 us (52%): the step gains at most 2.11" in lines
    assert "| shadow | compress | 7 | 2 | 0.033 |" in lines
    assert "created" not in "".join(lines)
    assert "| prefill | 4096 | 1 | 30.00 (29.00..31.00) | 20.00 (19.00..21.00) | **1.50** |" in lines
    assert "- ours: `DSV41_KERNELS=all=on`" in lines


def test_a_variants_arguments_are_its_own() -> None:
    line = ["--variant", "a=all=off", "--variant", "b=compress=on", "--gpus", "0,1", "--out", "x"]
    given = compare.parse([*line, "--with", "b=--chunked-prefill-size=1024", "--ablate", "b=attention=0,index=0"])
    assert compare.variants(given) == [
        Variant("a", "all=off"),
        Variant("b", "compress=on", ("--chunked-prefill-size=1024",), "attention=0,index=0"),
    ]


def test_the_study_tells_rounding_from_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """On a model of few tokens: what is missing changes more than rounding, nothing does where there was nothing; unknown gains are refused."""
    size = study.Size(hidden=256, vocabulary=256, tokens=64, window=8, topk=8)
    found = study.examine(weights.Gains(attention=1), 1, size)
    assert found["rounding"] < 0.1 < found["attention"]
    model, ids = study.Model(1, weights.Gains(attention=0), size), torch.arange(64)
    kept, taken = (model.logits(ids, study.Disturbance(without=part)) for part in ("", "attention"))
    assert torch.equal(kept, taken)
    assert study.main(["depth=1"]) == 2
    assert "no gain 'depth'" in capsys.readouterr().err


def answers(variant: str, positions: list[int], p90: float | None = None) -> dict:
    """A record of ten answers of 10 tokens that differ at `positions`."""
    record = {"variant": variant, "against": "stock", "answers": 10, "equal": 10 - len(positions), "tokens": 100}
    record["differences"] = [{"position": position, "margin_nats": 0.1} for position in positions]
    return record | ({} if p90 is None else {"prefill_logprob_difference_nats": {"p90": p90}})


@pytest.mark.parametrize(
    ("record", "control", "words"),
    [
        (answers("all", []), None, "equal to stock"),
        (answers("all", [0]), None, "different from stock: 10% of tokens follow a difference; no control"),
        (
            answers("all", [0, 0], 0.2),
            answers("control", [0], 0.1),
            "as the control: 20% of tokens follow a difference, 10% in",
        ),
        (answers("all", [0, 0, 0], 0.2), answers("control", [0], 0.1), "different from stock: 30%"),
        (answers("all", [5], 0.21), answers("control", [0], 0.1), "different from stock: 5%"),
        (
            answers("pair", [5]),
            answers("control", [0], 0.1),
            "as the control: 5% of tokens follow a difference, 10% in the control",
        ),
        (answers("all", [0, 0]), answers("control", [0, 0, 0]), "undecided, rounding alone changes too much: 20%"),
        (answers("control", [0, 4], 0.1), answers("control", [0, 4], 0.1), "the control: 16% of tokens"),
    ],
)
def test_a_verdict_measures_by_the_control(record: dict, control: dict | None, words: str) -> None:
    assert verdict.judge(record, control).startswith(words)


def test_answers_are_compared_up_to_their_first_difference() -> None:
    theirs = [workload.Answer([5, 6, 7], [1.0, 2.0, 0.01]), workload.Answer([5, 6], [3.0, 4.0])]
    ours = [workload.Answer([5, 6, 8], [0.0, 0.0, 0.0]), workload.Answer([5, 6], [0.0, 0.0])]
    assert workload.compare_answers(ours, theirs) == {
        "answers": 2,
        "equal": 1,
        "tokens": 5,
        "distinct_tokens": 3,
        "median_margin_nats": 2.0,
        "differences": [{"position": 2, "margin_nats": 0.01}],
    }


class Deaf:
    """A server whose answers are given: `compare_tokens` reaches it only through the workload."""

    def __init__(self, name: str, token: int, value: float) -> None:
        self.variant, self.token, self.value = Variant(name, "all=off"), token, value

    def flush(self) -> None: ...


def test_a_later_run_is_compared_with_the_first_ones_answers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(server: Deaf, prompts: list[list[int]], _new: int) -> list[workload.Answer]:
        return [workload.Answer([5, server.token], [1.0, 0.5]) for _ in prompts]

    def weigh(server: Deaf, ids: list[int], _start: int) -> list[float]:
        assert ids[-2:] == [5, 6]  # the reference's answer, whoever weighs it
        return [server.value]

    monkeypatch.setattr(workload, "ask", ask)
    monkeypatch.setattr(workload, "log_probabilities", weigh)
    path = tmp_path / "reference.json"
    records, reference = compare.compare_tokens([Deaf("stock", 6, -1.0)], [3], 2)  # type: ignore[list-item]
    assert [(each["against"], each["equal"], each["answers"]) for each in records] == [("stock", 9, 9)]
    reference.save(path)
    loaded = compare.Reference.load(path)
    assert loaded == reference
    records, again = compare.compare_tokens([Deaf("ours", 7, -1.25)], [3], 2, loaded)  # type: ignore[list-item]
    assert again is loaded
    (record,) = records
    assert (record["against"], record["variant"], record["equal"]) == ("stock", "ours", 0)
    assert record["differences"][0] == {"position": 1, "margin_nats": 0.5}
    assert record["prefill_logprob_difference_nats"]["largest"] == 0.25


@pytest.mark.parametrize(("heads", "groups"), [(8, 1), (16, 2), (64, 8)])
def test_the_model_has_every_kind_of_layer_and_a_ranks_heads(heads: int, groups: int) -> None:
    config = Scale(heads=heads).config()
    assert (config["num_attention_heads"], config["o_groups"]) == (heads, groups)
    assert config["compress_ratios"] == [0, 0, 2, 2, 1, 1]
    assert config["kv_source_layer_ids"] == [2, 4]
    assert re.fullmatch("DeepseekV41.*", config["architectures"][0])


def test_forty_layers_stand_as_in_v41() -> None:
    """Same layout as the stored shape of the real model, a TP4 rank's share of heads and experts."""
    config = Scale(heads=16, layers=40, expert_width=576).config()
    stored = json.loads((ROOT / "deploy/shapes/deepseek-v4.1-flash.json").read_text(encoding="utf-8"))
    same = ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "candidate_block_size", "index_topk")
    assert {key: config[key] for key in same} == {key: stored[key] for key in same}
    assert config["candidate_source_layer_id"] == stored["kv_source_layer_ids"][-1]
    assert config["num_hidden_layers"] == len(config["compress_ratios"]) == 40
    assert 4 * config["moe_intermediate_size"] == stored["moe_intermediate_size"]
    assert 4 * config["o_groups"] == stored["o_groups"]


class Attention:
    """What SGLang's attention says of itself on one GPU."""

    attn_tp_size = 1

    def split(self, rows: int) -> tuple[int, int]:
        return self.attn_tp_size, rows


def test_a_single_gpu_answers_as_a_rank_and_stays_one() -> None:
    attention = Attention()
    assert rank.answer_as_rank(Attention.split, attention, 3) == (2, 3)
    with pytest.raises(ZeroDivisionError):
        rank.answer_as_rank(lambda _: 1 // 0, attention)
    assert attention.attn_tp_size == 1


def test_the_hooked_functions_are_in_the_engine() -> None:
    """With the parameters that the hooks pass on. Read, not imported: the engine's model needs a GPU."""
    engine = importlib.util.find_spec("sglang")
    assert engine is not None
    assert engine.origin is not None
    source = pathlib.Path(engine.origin).parent / "srt/models/deepseek_v4.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    attention = next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "MqaAttentionBase"
    )
    methods = {
        node.name: [a.arg for a in node.args.args] for node in attention.body if isinstance(node, ast.FunctionDef)
    }
    assert methods["_kernel_num_heads"] == ["self", "num_tokens"]
    assert methods["_local_attn_sink"] == ["self", "kernel_num_heads"]
    assert {target.rsplit(".", 1)[1] for target in rank.TARGETS} <= methods.keys()


REGISTER = """
import sys, types
sys.modules["sglang.srt.managers.scheduler"] = types.ModuleType("scheduler")
from dsv41_kernels.serve import rank, weights
from sglang.srt.plugins.hook_registry import HookRegistry
weights.register()
print(set(rank.TARGETS) <= set(HookRegistry._hooks), weights._TARGET in HookRegistry._hooks)
"""


@pytest.mark.parametrize(("seed", "hooked"), [("1", "True True"), ("", "False False")])
def test_the_plugin_hooks_weights_and_heads_when_it_has_a_seed(seed: str, hooked: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", REGISTER],
        env={**os.environ, weights.VARIABLE: seed},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split("\n")[-2] == hooked
