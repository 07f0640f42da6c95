"""SGLang's own load generator, driven: its command line, and what it wrote, as rounds. Nothing here sends a request."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41_serving.bench.result import Round
from dsv41_serving.errors import GateError
from dsv41_serving.plan.model import Placement
from dsv41_serving.run.session import prepare_child

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv41_serving.bench.scenario import PromptSet, Scenario

MODULE = "sglang.benchmark.serving"
_PATIENCE_S = 7200.0
_DIGITS = 6


def command_line(scenario: Scenario, *, url: str, model: str, tokenizer: str, prompts: str, output: str) -> list[str]:
    """Return the command of one round against the OpenAI completions API at `url`.

    Text prompts, temperature 0, end of sentence ignored, every request of the scenario once, `at_once` in flight. The
    lengths of the answers are those of the second turns in the file of prompts.
    """
    return [
        *(sys.executable, "-m", MODULE),
        *("--backend", "sglang-oai", "--base-url", url, "--model", model, "--tokenizer", tokenizer),
        *("--dataset-name", "custom", "--dataset-path", prompts),
        *("--num-prompts", str(len(scenario.turns)), "--max-concurrency", str(scenario.at_once)),
        *("--seed", "42", "--warmup-requests", "0", "--disable-tqdm"),
        # The generator sends best_of = 1, which the contract refuses as it refuses every field it cannot honour.
        *("--extra-request-body", '{"best_of": null}'),
        *("--output-file", output, "--output-details"),
    ]


def run_round(
    scenario: Scenario, prompts: PromptSet, *, url: str, model: str, tokenizer: str, env: Mapping[str, str]
) -> tuple[Round, str]:
    """Run one round and return it with the command that was used. Raises GateError when requests fail."""
    with tempfile.TemporaryDirectory(prefix="dsv41-bench-") as name:
        directory = Path(name)
        (directory / "prompts.jsonl").write_text("\n".join(prompts.lines) + "\n", encoding="utf-8")
        output = directory / "output.jsonl"
        command = command_line(
            scenario,
            url=url,
            model=model,
            tokenizer=tokenizer,
            prompts=str(directory / "prompts.jsonl"),
            output=str(output),
        )
        done = subprocess.run(
            command,
            env=dict(env),
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
            cwd=directory,
            preexec_fn=prepare_child(Placement(gpus=(), numa_node=None, cpus=()), pin=False),  # it ends with us
        )
        if done.returncode or not output.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise GateError(
                f"the load generator ended with {done.returncode}: {lines[-1] if lines else 'it printed nothing'}",
                where=f"scenario {scenario.name}",
                remedy="dsv41 gate; read the logs of the services",
            )
        round_ = parse_output(output.read_text(encoding="utf-8"), scenario)
        return round_, " ".join(["python", *command[1:]]).replace(f"{directory}/", "")


def parse_output(text: str, scenario: Scenario) -> Round:
    """Return the round that the load generator wrote as one line of JSON.

    Raises GateError when a request failed: a round with holes has no meaning.
    """
    values: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    errors = [error for error in values["errors"] if error]
    answers = [int(length) for length in values["output_lens"]]
    if errors or len(answers) != len(scenario.turns) or min(answers, default=0) < 1:
        first = errors[0].strip().splitlines()[-1] if errors else f"{len(answers)} of {len(scenario.turns)} requests"
        raise GateError(
            f"{max(1, len(errors))} of {len(scenario.turns)} requests failed: {first[:200]}",
            where=f"scenario {scenario.name}",
            remedy="dsv41 gate; read the logs of the services",
        )
    return Round(
        duration_s=values["duration"],
        completed=values["completed"],
        failed=len(errors),
        input_tokens=values["total_input_tokens"],
        output_tokens=sum(answers),
        ttft_s=tuple(round(value, _DIGITS) for value in values["ttfts"]),
        itl_s=tuple(tuple(round(gap, _DIGITS) for gap in gaps) for gaps in values["itls"]),
        answers=tuple(answers),
    )
