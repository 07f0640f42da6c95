"""Two looks at two engines make one hand-off, and a table of medians."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import httpx
import pytest

from dsv41_serving.bench import handoff
from dsv41_serving.bench.handoff import Length, Sample, as_json, compare_pages, describe_lengths, read_page, tabulate
from dsv41_serving.errors import GateError
from dsv41_serving.facts import read_facts
from tests.unit.plan.machines import plan_for

RANK = ("stock", "packed", "short-switch", "stock-cached", "stock-cached-2", "cached", "cached-2")
"""Runs on two H200: the first three before schedulers rested, the others since."""
BEFORE = """# TYPE dsv41_handoff_stage_seconds histogram
dsv41_handoff_stage_seconds_bucket{le="+Inf",stage="poll"} 4.0
dsv41_handoff_stage_seconds_sum{stage="poll"} 1.5
dsv41_handoff_stage_seconds_count{stage="poll"} 4.0
# TYPE sglang:other counter
sglang:other_total 7.0
"""
AFTER = """# TYPE dsv41_handoff_stage_seconds histogram
dsv41_handoff_stage_seconds_sum{stage="prepare"} 0.25
dsv41_handoff_stage_seconds_count{stage="prepare"} 1.0
dsv41_handoff_stage_seconds_sum{stage="wire"} 0.75
dsv41_handoff_stage_seconds_count{stage="wire"} 1.0
dsv41_handoff_stage_seconds_sum{stage="poll"} 2.0
dsv41_handoff_stage_seconds_count{stage="poll"} 5.0
# TYPE dsv41_handoff_bytes histogram
dsv41_handoff_bytes_sum 2e+09
# TYPE dsv41_handoff_descriptors histogram
dsv41_handoff_descriptors_sum 60.0
# TYPE dsv41_handoff_transfers counter
dsv41_handoff_transfers_total{path="stock"} 1.0
"""
ADMITTED = """# TYPE dsv41_handoff_stage_seconds histogram
dsv41_handoff_stage_seconds_sum{stage="admit"} 0.125
dsv41_handoff_stage_seconds_count{stage="admit"} 1.0
"""


def test_what_grew_between_two_looks_is_the_hand_off() -> None:
    before = {"prefill": read_page(BEFORE), "decode": read_page("")}
    assert before["prefill"] == {
        "dsv41_handoff_stage_seconds_sum{poll}": 1.5,
        "dsv41_handoff_stage_seconds_count{poll}": 4.0,
    }
    after = {"prefill": read_page(AFTER), "decode": read_page(ADMITTED)}
    sample = compare_pages(before, after, 0.5)
    assert sample is not None
    passed = {stage: seconds for stage, seconds in sample.stages.items() if seconds}
    assert passed == {"prefill.prepare": 0.25, "prefill.wire": 0.75, "prefill.poll": 0.5, "decode.admit": 0.125}
    assert (sample.bytes, sample.descriptors, sample.path, sample.first_token_s) == (2e9, 60.0, "stock", 0.5)
    assert sample.gb_s == 2.0
    assert sample.added_s == 1.125


def test_a_hand_off_that_is_not_admitted_yet_is_waited_for() -> None:
    before = {"prefill": read_page(BEFORE), "decode": read_page("")}
    assert compare_pages(before, {"prefill": read_page(AFTER), "decode": read_page("")}, 0.5) is None


def test_a_second_request_spoils_the_measurement() -> None:
    with pytest.raises(GateError, match="another request was handed over meanwhile"):
        compare_pages({"prefill": {}, "decode": {}}, {"prefill": read_page(BEFORE), "decode": read_page(ADMITTED)}, 0.5)


def test_a_request_that_is_refused_is_told_in_one_line() -> None:
    """Httpx adds a second one with a link about the status."""
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(400)))
    with pytest.raises(GateError, match="400 Bad Request") as caught:
        handoff._ask(client, plan_for(read_facts(), "embedded"), "text")
    assert "\n" not in str(caught.value)


def test_the_table_shows_medians_and_leaves_out_what_never_passed() -> None:
    def sample(wire: float) -> Sample:
        stages = {f"{role}.{stage}": 0.0 for role, names in handoff.STAGES.items() for stage in names}
        return Sample(0.5, {**stages, "prefill.wire": wire}, 2**20, 60, "packed")

    length = Length(128, (sample(0.001), sample(0.004), sample(0.002)))
    assert list(describe_lengths([length])) == [
        "median, ms                   128",
        "prefill  wire              2.000",
        "added, at most                 2",
        "first token                  500",
        "MiB                            1",
        "blocks for NIXL               60",
        "GB/s                      0.5243",
        "path                      packed",
    ]


def test_stages_are_those_that_the_engines_count() -> None:
    """Read from the source: the module itself needs the engine."""
    path = Path(handoff.__file__).parents[1] / "sglang_plugin/handoff/waterfall.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "STAGES":
            stages = ast.literal_eval(node.value)
    assert {role: tuple(names) for role, names in stages.items()} == handoff.STAGES


def test_results_become_a_table_with_a_line_for_each_length_of_prompt() -> None:
    stages = {f"{role}.{stage}": 0.0 for role, names in handoff.STAGES.items() for stage in names}
    moved = Sample(
        0.5, {**stages, "prefill.prepare": 0.001, "prefill.wire": 0.002, "decode.unpack": 0.004}, 3e6, 1200, "packed"
    )
    result = {"lengths": as_json([Length(1024, (moved,))])}
    assert tabulate({"packed-tcp": result})[2:] == ["| packed-tcp | 1,024 | 1,200 | 2.9 | 7.0 | 1.00 | 3.0 | 500 |"]


def test_the_page_shows_the_committed_results() -> None:
    """Each run with the medians of its file, the losing ones too."""
    root = Path(__file__).parents[3]
    page = (root / "dsv41_serving/bench/README.md").read_text(encoding="utf-8")
    embedded = sorted((root / "deploy/results/handoff").glob("*-*.json"))
    assert embedded
    for files in (embedded, [root / f"deploy/results/rank/{name}.json" for name in RANK]):
        table = tabulate({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files})
        assert "\n".join(table) in page


@pytest.mark.parametrize(
    ("name", "handoffs", "retracted", "restarts"),
    [("soak", 10_235, 856, {"decode": 1, "prefill": 1}), ("soak_long", 288, 32, {})],
)
def test_the_soaks_were_sound(name: str, handoffs: int, retracted: int, restarts: dict[str, int]) -> None:
    """And as large as the page says."""
    root = Path(__file__).parents[3]
    soak = json.loads((root / f"deploy/results/handoff/{name}.json").read_text(encoding="utf-8"))
    outcome = soak["outcome"]
    assert soak["sound"]
    assert (outcome["handoffs"], outcome["retracted"], outcome["restarts"]) == (
        {"packed": handoffs},
        retracted,
        restarts,
    )
    assert f"{handoffs:,}" in (root / "dsv41_serving/bench/README.md").read_text(encoding="utf-8")
