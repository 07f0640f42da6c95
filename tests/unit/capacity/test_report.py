"""What `dsv41 capacity` prints, compares and refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from dsv41_serving.capacity import estimate_node, read_shape
from dsv41_serving.capacity.measured import compare_reports
from dsv41_serving.capacity.report import list_shortages
from dsv41_serving.capacity.request import choose_lengths, estimate_load_s, find_gpu_bytes, find_shape_host
from dsv41_serving.check.metrics import MetricsPage
from dsv41_serving.cli import cli
from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_facts
from dsv41_serving.spec import load_spec
from tests.fixtures.machines.build import build_machine
from tests.unit.capacity.test_estimate import SMOLLM2

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
H200 = 143_771 << 20


def capacity(tmp_path: Path, machine: str, *options: str) -> Result:
    root = build_machine(machine, tmp_path / "machines")
    return CliRunner().invoke(cli, ["--root", str(root), *options])


def test_a_profile_can_be_judged_before_anything_is_bought(tmp_path: Path) -> None:
    """No GPU here: the board the profile is for is taken."""
    done = capacity(tmp_path, "laptop", "--profile", "h200x8", "capacity", "--json")
    report = json.loads(done.output)
    assert done.exit_code == 0
    assert [each["shape"] for each in report["shapes"]] == ["pd", "replicas", "tp8"]
    pair = report["shapes"][0]
    assert pair["engines"][1]["kv_bytes_per_token"] == 1632.5
    assert set(pair["sessions"]) == {"4096", "32768", "131072", "524288"}
    assert report["sizes_from"].endswith("deploy/shapes/deepseek-v4.1-flash.json")


def test_what_cannot_fit_is_refused_with_the_missing_size(tmp_path: Path) -> None:
    done = capacity(tmp_path, "laptop", "--profile", "h200x8", "capacity", "--gpu-memory", "96")
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "does not fit: prefill is 34.8 " in said
    assert "GiB short on each GPU; put the Engram tables on the host" in said


def test_the_tables_hold_sessions_and_hand_off(tmp_path: Path) -> None:
    done = capacity(tmp_path, "two-socket-8gpu", "--profile", "h200x8", "capacity", "--context", "65536", "--disk", "5")
    assert done.exit_code == 0
    assert "requests of 64K at once" in done.output
    assert "loading, cold, one engine: about" in done.output
    assert "118.46 GiB" in done.output


# --- host memory --------------------------------------------------------------------------------------------------------


def test_a_pool_that_this_machine_cannot_hold_is_refused(tmp_path: Path) -> None:
    """On a CPU: a thousand million tokens of 23,040 bytes, for two engines, on a laptop of 32 GiB."""
    options = ["--profile", "embedded", "--set", f"node.cache_dir={tmp_path}"]
    fits = capacity(tmp_path, "laptop", *options, "capacity", "--json")
    assert (fits.exit_code, json.loads(fits.output)["shapes"][0]["fits"]) == (0, True)
    options += ["--set", "engines.decode.max_total_tokens=1000000000"]
    done = capacity(tmp_path / "again", "laptop", *options, "capacity")
    said = " ".join(done.output.split())
    assert done.exit_code == 1
    assert "does not fit: host memory is 21,43" in said
    assert "lower engines.decode.max_total_tokens" in said


def test_tables_that_the_host_cannot_hold_are_refused(tmp_path: Path) -> None:
    """Eight copies are 1.5 TiB: 2 TiB hold them on two nodes, 1 TiB does not, nor does one node of the two."""
    copies = ["--profile", "h200x8", "--set", "memory.engram='host_per_rank'"]
    done = capacity(tmp_path, "two-socket-8gpu", *copies, "capacity", "--json")
    pair = json.loads(done.output)["shapes"][0]
    assert (done.exit_code, pair["host_short_bytes"]) == (0, {})
    assert pair["host_bytes"] > 1.4 * 1024 * GIB
    bought = capacity(tmp_path / "b", "laptop", *copies, "capacity", "--host-memory", "1024")
    said = " ".join(bought.output.split())
    assert bought.exit_code == 1
    assert "does not fit: host memory is 5" in said
    assert "memory.engram = 'host_shared'" in said


def test_each_numa_node_must_hold_its_engines(tmp_path: Path) -> None:
    """Prefill lies on node 0 and decode on node 1, each with half of the memory of the machine."""
    facts = read_facts(build_machine("two-socket-8gpu", tmp_path))
    spec = load_spec(profile="h200x8", overrides=("memory.engram='host_shared'",)).spec
    small = facts.numa[1].model_copy(update={"memory_total_bytes": 200 * GIB})
    facts = facts.model_copy(update={"numa": (facts.numa[0], small)})
    host = find_shape_host(spec, facts, "pd", gpu_gib=None, host_gib=None)
    node = estimate_node(spec, read_shape(None, spec.model.name), H200, "pd", host)
    needed = node.engines[1].host_bytes
    assert node.host_short == {"memory of NUMA node 1": needed - 200 * GIB}
    assert not node.fits
    assert list_shortages(node)[0].startswith("does not fit: memory of NUMA node 1 is 2")


def test_a_machine_that_is_not_the_target_is_not_compared(tmp_path: Path) -> None:
    """A laptop says nothing of the host of eight GPUs, and no 'yes' is given for it."""
    done = capacity(tmp_path, "laptop", "--profile", "h200x8", "capacity")
    said = " ".join(done.output.split())
    assert done.exit_code == 0
    assert "not compared, this machine is not the one: --host-memory GIB does" in said
    assert re.search(r"fits( │ on GPUs){3}", said)
    facts = read_facts(build_machine("two-socket-8gpu", tmp_path / "gpus"))
    spec = load_spec(profile="h200x8").spec
    assert find_shape_host(spec, facts, "pd", gpu_gib=80.0, host_gib=None) is None


def test_load_time_and_origin_are_in_the_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compared with running engines says where it comes from."""
    options = ["--profile", "h200x8", "capacity", "--disk", "5", "--json"]
    report = json.loads(capacity(tmp_path, "laptop", *options).output)
    assert report["load_s"] == pytest.approx(118 * GIB * 4 / 5e9, rel=0.02)
    assert "provenance" not in report
    page = MetricsPage('sglang:max_total_num_tokens{tp_rank="0"} 1\n')

    async def read(_: object) -> dict[str, MetricsPage]:
        return {"decode": page}

    monkeypatch.setattr("dsv41_serving.capacity.measured.read_reports", read)
    found = json.loads(capacity(tmp_path / "b", "two-socket-8gpu", *options, "--running").output)
    assert found["compared"][0]["quantity"] == "pool tokens"
    assert {"date", "command", "commit", "versions", "machine"} <= set(found["provenance"])


def test_a_context_that_no_request_can_have_is_refused(tmp_path: Path) -> None:
    done = capacity(tmp_path, "laptop", "--profile", "h200x8", "capacity", "--context", "4096", "--context", "10000000")
    assert isinstance(done.exception, InputError)
    assert "--context: 10,000,000 tokens are more than engines take (524,288)" in str(done.exception)


def test_memory_of_a_gpu_comes_from_the_smallest_here() -> None:
    spec = load_spec(profile="h200x8").spec
    assert find_gpu_bytes(spec, read_facts(), 80.0) == 80 * GIB
    assert find_gpu_bytes(load_spec(profile="embedded").spec, read_facts(), None) is None


def test_a_machine_with_gpus_speaks_for_itself(tmp_path: Path) -> None:
    facts = read_facts(build_machine("two-socket-8gpu", tmp_path))
    small = facts.gpus[3].model_copy(update={"memory_total_bytes": 90 * GIB})
    facts = facts.model_copy(update={"gpus": (*facts.gpus[:3], small, *facts.gpus[4:])})
    assert find_gpu_bytes(load_spec(profile="h200x8").spec, facts, None) == 90 * GIB


def test_an_unknown_board_needs_its_memory(tmp_path: Path) -> None:
    facts = read_facts(build_machine("laptop", tmp_path))
    spec = load_spec(profile="h200x8", overrides=("engine.compute_capability='8.0'",)).spec
    with pytest.raises(InputError, match="--gpu-memory 140"):
        find_gpu_bytes(spec, facts, None)


def test_lengths_stay_within_the_context() -> None:
    spec = load_spec(profile="embedded").spec
    assert choose_lengths(spec, ()) == (4096, 8192)
    assert choose_lengths(spec, (300, 200, 300)) == (200, 300)


def test_load_time_is_size_over_speed(tmp_path: Path) -> None:
    assert estimate_load_s(None, 510_000_000_000, 5.0) == 102.0
    assert estimate_load_s(None, 1, None) is None
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))
    measured = estimate_load_s(tmp_path, 1 << 20, None)
    assert measured is not None
    assert measured > 0


def test_a_model_nobody_described_is_bad_input() -> None:
    with pytest.raises(InputError, match="nothing is known of the sizes of 'other'"):
        read_shape(None, "other")


def test_a_checkpoint_wins_over_the_stored_shape(tmp_path: Path) -> None:
    """With its nested text_config, and a head size that follows from the others."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "text_config": {
                    "vocab_size": 100,
                    "hidden_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                },
            }
        )
    )
    shape = read_shape(tmp_path, "deepseek-v4.1-flash")
    assert (shape.head_dim, shape.is_v41, shape.origin) == (16, False, str(tmp_path / "config.json"))


@pytest.mark.parametrize("text", ["{", '{"architectures": ["X"], "num_attention_heads": 4}'])
def test_a_damaged_config_is_bad_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="is not a model description"):
        read_shape(tmp_path, "deepseek-v4.1-flash")


def test_prediction_is_held_against_the_pages_of_the_engines() -> None:
    """Tokens and bytes of the pools, the window, and on a GPU the weights; an engine that is silent is left out."""
    spec = load_spec(profile="h200x8").spec
    node = estimate_node(spec, read_shape(None, spec.model.name), H200)
    decode = node.engines[1]
    page = MetricsPage(
        f'sglang:max_total_num_tokens{{tp_rank="0"}} {decode.tokens}\n'
        f'sglang:kv_cache_memory_usage_gb{{tp_rank="0"}} {decode.pool_bytes / GIB * 1.25}\n'
        'sglang:max_total_num_tokens_swa{tp_rank="0"} 49152\n'
        'sglang:weight_memory_usage_gb{tp_rank="0"} 119.83\n'
        'sglang:graph_memory_usage_gb{phase="decode",tp_rank="0"} 1.5\n'
        'sglang:graph_memory_usage_gb{phase="target_verify",tp_rank="0"} 0.5\n'
    )
    rows = {row.quantity: row for row in compare_reports(node, {"decode": page})}
    assert set(rows) == {"pool tokens", "pool GiB", "window tokens", "weights GiB", "graphs GiB"}
    assert rows["graphs GiB"].reported == 2.0
    assert rows["graphs GiB"].predicted == decode.decode_graph_bytes / GIB
    assert rows["pool tokens"].error == 0.0
    assert rows["pool GiB"].error == pytest.approx(-0.2)
    assert rows["window tokens"].error == 0.0
    assert abs(rows["weights GiB"].error) < 0.03


def test_on_a_cpu_weights_are_not_compared() -> None:
    """There SGLang reports how far free host memory fell, which other processes move."""
    spec = load_spec(profile="embedded").spec
    node = estimate_node(spec, SMOLLM2, None)
    page = MetricsPage("sglang:max_total_num_tokens{} 32768\nsglang:weight_memory_usage_gb{} 0.55\n")
    assert [row.quantity for row in compare_reports(node, {"decode": page})] == ["pool tokens"]


def test_a_shortage_names_what_would_fit() -> None:
    spec = load_spec(profile="rtxpro6000x8", overrides=("engines.prefill.max_total_tokens=7000000",)).spec
    node = estimate_node(spec, read_shape(None, spec.model.name), 97_887 << 20)
    (line,) = list_shortages(node)
    assert line.startswith("does not fit: prefill is ")
    assert f"set engines.prefill.max_total_tokens = {node.engines[0].safe_tokens}" in line


def test_the_stored_shape_of_the_toy_model_is_the_one_that_was_measured(tmp_path: Path) -> None:
    """So that a fresh checkout can plan before it has made the model."""
    assert read_shape(None, "smollm2-v41").model_copy(update={"origin": ""}) == SMOLLM2
    done = capacity(
        tmp_path, "laptop", "--profile", "embedded", f"--set=node.cache_dir={tmp_path}", "capacity", "--json"
    )
    assert done.exit_code == 0
    assert json.loads(done.output)["shapes"][0]["engines"][1]["pool_bytes"] == 23040 * 32769
