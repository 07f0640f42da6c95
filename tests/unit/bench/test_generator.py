"""The load generator is imported once and serves many rounds; what goes wrong is said in its own words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.bench.generator import Generator
from dsv41_serving.bench.scenario import PromptSet, Scenario, Turn
from dsv41_serving.errors import GateError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOAD = Scenario("single", "one request", (Turn(16, 3),), 1)
PROMPTS = PromptSet(('{"conversations": []}',), "ab" * 32, 16)
# In place of SGLang's module: it notes the process that imported it, and does as the address says.
STAND_IN = """
import json, os, sys
IMPORTED_BY = os.getpid()

def cli_main():
    options = {name: value for name, value in zip(sys.argv, sys.argv[1:]) if name.startswith("--")}
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.listdir(options["--tokenizer"]) == ["tokenizer.json"]
    print("prompts:", open(options["--dataset-path"]).read().strip())
    if "refuse" in options["--base-url"]:
        sys.exit("nobody listens there")
    if "crash" in options["--base-url"]:
        os.kill(os.getpid(), 9)
    row = {"duration": float(IMPORTED_BY), "completed": 1, "total_input_tokens": 16, "output_lens": [3], "ttfts": [0.1],
           "itls": [[0.01, 0.02]], "errors": [""]}
    open(options["--output-file"], "w").write(json.dumps(row) + chr(10))
"""


@pytest.fixture
def generator(tmp_path: Path) -> Iterator[Generator]:
    package = tmp_path / "sglang" / "benchmark"
    package.mkdir(parents=True)
    for directory in (package.parent, package):
        (directory / "__init__.py").write_text("")
    (package / "serving.py").write_text(STAND_IN)
    with Generator({**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}) as found:
        yield found


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    directory = tmp_path / "models" / "t"
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text("{}")
    (directory / "config.json").write_text("{}")  # which the load generator must not see
    return str(directory)


def test_rounds_share_one_import_and_each_is_read(generator: Generator, tokenizer: str) -> None:
    rounds = [generator.run_round(LOAD, PROMPTS, url="http://r", model="m", tokenizer=tokenizer) for _ in range(2)]
    assert rounds[0][0].duration_s == rounds[1][0].duration_s != os.getpid()
    assert rounds[0][0].answers == (3,)
    assert "--tokenizer t --dataset-name" in rounds[0][1]
    assert rounds[0][1].startswith("python -m sglang.benchmark.serving --backend sglang-oai --base-url http://r ")


def test_a_round_that_fails_is_said_and_the_next_one_runs(generator: Generator, tokenizer: str) -> None:
    for address, said in (
        ("http://refuse", r"ended with 1: nobody listens there"),
        ("http://crash", r"ended with -9: "),
    ):
        with pytest.raises(GateError, match=said):
            generator.run_round(LOAD, PROMPTS, url=address, model="m", tokenizer=tokenizer)
    assert generator.run_round(LOAD, PROMPTS, url="http://r", model="m", tokenizer=tokenizer)[0].completed == 1


def test_nothing_is_left_when_it_is_closed_in_the_midst(generator: Generator) -> None:
    """The directory and the process are gone, whatever was running."""
    place = generator._place
    generator.__exit__()
    assert not place.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(generator._driver.pid, 0)


def test_without_sglang_it_says_so(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("raise ImportError('no engine here')")
    with (
        Generator({**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}) as found,
        pytest.raises(GateError, match="the load generator is gone: ImportError: no engine here"),
    ):
        found.run_round(LOAD, PROMPTS, url="http://r", model="m", tokenizer=tokenizer)
