"""Every number that is told comes from a committed result, from a setting, or from the planner: nothing is written by hand."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dsv41_serving.bench.compare import FLOOR
from dsv41_serving.bench.published import insert_section
from dsv41_serving.bench.report import describe_comparison, write_pages
from dsv41_serving.bench.result import read_result
from dsv41_serving.capacity import read_shape
from dsv41_serving.capacity.engine import read_settings
from dsv41_serving.capacity.estimate import GIB, LOADED_BYTES
from dsv41_serving.capacity.pools import hand_off_bytes, size_pools
from dsv41_serving.capacity.weights import weigh
from dsv41_serving.run.stack import RESTART_LIMIT, RESTART_WINDOW_S
from dsv41_serving.run.supervise import _READ_PROGRESS_BYTES
from dsv41_serving.spec import load_spec, profile_names

REPOSITORY = Path(__file__).parents[2]
RESULTS = sorted((REPOSITORY / "deploy" / "results").rglob("*.json"))
ROOM = REPOSITORY / "dsv41_serving" / "bench" / "README.md"
_MEASURE = re.compile(r"\d[\d.,]* ?(?:GiB|MiB|GB/s|GB|ms|tok/s|%|s\b|minutes)")


def weights_of_a_rank() -> float:
    decode = read_settings(load_spec(profile="h200x8").spec, "decode")
    return (weigh(read_shape(None, "deepseek-v4.1-flash"), decode).gpu + LOADED_BYTES) / GIB


def handed_over() -> dict[int, float]:
    """Prompt length -> bytes that NIXL moved for it between two H200, the same in every sample."""
    result = json.loads((REPOSITORY / "deploy/results/rank/stock.json").read_text(encoding="utf-8"))
    found = {}
    for length in result["lengths"]:
        (found[length["prompt"]],) = {sample["bytes"] for sample in length["samples"]}
    return found


# What the prose of the README tells, and where it comes from. 8 GiB is what deploy/results/embedded.json stays below, 15 GB what
# the environment of these tests does with 2 GB for models and caches, 5 s is smg 1.13.0's own grace.
TOLD = {
    "8 GiB": 8.0,
    "15 GB": 15.0,
    "64 MiB": _READ_PROGRESS_BYTES / 2**20,
    "30 minutes": RESTART_WINDOW_S / 60,
    "5 s": 5.0,
    "118.5 GiB": round(weights_of_a_rank(), 1),
    "12.1 MiB": round(handed_over()[4_096] / 2**20, 1),
    "56.7 MiB": round(handed_over()[32_768] / 2**20, 1),
    "0.2 %": 0.2,
}


def test_the_hand_off_between_two_gpus_was_foretold() -> None:
    """Bytes of both lengths within the share that the README tells, and those of a token exactly."""
    shape, decode = read_shape(None, "v41-rank"), read_settings(load_spec(profile="h200x2-rank").spec, "decode")
    moved = handed_over()
    for prompt, size in moved.items():
        assert hand_off_bytes(shape, decode, prompt) == pytest.approx(size, rel=TOLD["0.2 %"] / 100)
    short, long = min(moved), max(moved)
    a_token = (moved[long] - moved[short]) / (long - short)
    assert a_token == size_pools(shape, decode).bytes_per_token
    assert f"{a_token:,}\n  bytes a token" in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_environment_fits_into_the_disk_the_readme_asks_for() -> None:
    """Each file once, whatever links to it; 2 GB stay for the embedded model, caches and the checkout."""
    files = {}
    for directory, _, names in os.walk(sys.prefix):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # bytecode that another process is just writing
                seen = (Path(directory) / name).lstat()
                files[seen.st_ino] = seen.st_size
    assert sum(files.values()) <= (TOLD["15 GB"] - 2) * 1e9


def test_every_measure_in_the_readme_has_a_source() -> None:
    """Outside of the tables that are written from result files."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"<!-- (figures|contract|routers)\b.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    found = set(_MEASURE.findall(prose))
    assert found == set(TOLD)
    for said, value in TOLD.items():
        assert float(re.match(r"[\d.]+", said)[0]) == value
    assert "After three restarts" in prose
    assert RESTART_LIMIT == 3


def test_the_stack_fits_into_the_memory_the_readme_asks_for() -> None:
    result = json.loads((REPOSITORY / "deploy/results/embedded.json").read_text(encoding="utf-8"))
    memory = next(row for row in result["figures"] if row["unit"] == "GiB")
    assert memory["value"] <= TOLD["8 GiB"] == memory["target"]


def test_the_numbers_of_the_benchmarks_are_those_of_their_results() -> None:
    """`python -m dsv41_serving.bench.published dsv41_serving/bench/README.md` writes them."""
    text = ROOM.read_text(encoding="utf-8")
    assert insert_section(text) == text


@pytest.mark.parametrize("name", ["pd-single", "router-direct", "single-single"])
def test_a_committed_report_is_what_its_results_say(name: str) -> None:
    """`dsv41 bench compare A.json B.json --out DIRECTORY` writes it."""
    directory = REPOSITORY / "deploy" / "results" / "bench" / name
    a, b = (read_result(directory / f"{side}.json") for side in "ab")
    pages = write_pages(f"{a.label} against {b.label}", describe_comparison(a, b, FLOOR))
    assert pages == tuple((directory / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_result_says_how_it_came_about(path: Path) -> None:
    """Command, date, versions, machine; and nothing of the directories of the machine that measured."""
    text = path.read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    made = values.get("provenance", values)
    assert date.fromisoformat(made["date"])
    assert made["command"]
    assert made["versions"]["sglang"]
    assert made["machine"]["cores"] > 0
    assert not re.search(r"/(?:tmp|root|home|work|Users)/", text)
    if "launches" in values:
        assert read_result(path).launches


@pytest.mark.parametrize("profile", profile_names())
def test_a_measured_profile_names_its_result_and_another_says_unmeasured(profile: str) -> None:
    provenance = load_spec(profile=profile).spec.provenance
    if provenance.status == "measured":
        assert (REPOSITORY / provenance.result).is_file()
    else:
        assert provenance.status == "unmeasured"
        assert provenance.sources
