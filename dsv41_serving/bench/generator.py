"""SGLang's own load generator, driven: its command line, and what it wrote, as rounds. Nothing here sends a request."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dsv41_serving.bench.driver import LOG
from dsv41_serving.bench.result import Round
from dsv41_serving.bench.tokenizer import link_tokenizer
from dsv41_serving.errors import GateError
from dsv41_serving.plan.model import Placement
from dsv41_serving.run.session import prepare_child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsv41_serving.bench.scenario import PromptSet, Scenario

MODULE = "sglang.benchmark.serving"
_PATIENCE_S = 7200.0
_DIGITS = 6
_PROMPTS, _OUTPUT = "prompts.jsonl", "output.jsonl"


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


class Generator:
    """The load generator, imported once for as many rounds as are wanted. `env` is what it runs with."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Start it in a directory of its own; close it with a `with` block."""
        self._directory = tempfile.TemporaryDirectory(prefix="dsv41-bench-")
        self._place = Path(self._directory.name)
        with (self._place / "driver.log").open("wb") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "dsv41_serving.bench.driver"],
                # It looks the served name up on the hub, only to warn; without a network that takes half a minute a round.
                env={**env, "HF_HUB_OFFLINE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=prepare_child(Placement(gpus=(), numa_node=None, cpus=()), pin=False),  # noqa: PLW1509 - no threads; it ends with us
            )

    def __enter__(self) -> Self:
        """Return this generator."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, in the midst of a round too, and remove its files."""
        self._driver.kill()
        self._driver.communicate()
        self._directory.cleanup()

    def run_round(
        self, scenario: Scenario, prompts: PromptSet, *, url: str, model: str, tokenizer: str
    ) -> tuple[Round, str]:
        """Run one round and return it with the command that does the same by hand, directories of this machine by their names.

        Raises GateError when requests fail.
        """
        (self._place / _PROMPTS).write_text("\n".join(prompts.lines) + "\n", encoding="utf-8")
        output = self._place / _OUTPUT
        output.unlink(missing_ok=True)
        linked = str(link_tokenizer(Path(tokenizer), self._place))
        command = command_line(scenario, url=url, model=model, tokenizer=linked, prompts=_PROMPTS, output=_OUTPUT)
        status = self._order(command[command.index(MODULE) + 1 :])
        if status != "0" or not output.is_file():
            raise GateError(
                f"the load generator {f'ended with {status}' if status else 'is gone'}: {self._last_words()}",
                where=f"scenario {scenario.name}",
                remedy="dsv41 gate; read the logs of the services",
            )
        return parse_output(output.read_text(encoding="utf-8"), scenario), " ".join(["python", *command[1:]]).replace(
            linked, Path(tokenizer).name
        )

    def _order(self, arguments: Sequence[str]) -> str:
        """Return the exit status of one run, as text; empty when the driver is gone or silent for too long."""
        orders, answers = self._driver.stdin, self._driver.stdout
        if orders is None or answers is None:
            raise RuntimeError("the driver has no pipes")
        try:
            orders.write(json.dumps({"directory": str(self._place), "arguments": list(arguments)}).encode() + b"\n")
            orders.flush()
        except BrokenPipeError:
            return ""
        ready, _, _ = select.select([answers], [], [], _PATIENCE_S)
        return answers.readline().decode().strip() if ready else ""

    def _last_words(self) -> str:
        for name in (LOG, "driver.log"):
            path = self._place / name
            lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
            if lines:
                return lines[-1]
        return "it printed nothing"


def parse_output(text: str, scenario: Scenario) -> Round:
    """Return the round that the load generator wrote as one line of JSON.

    Raises GateError when a request failed: a round with holes has no meaning.
    """
    values: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    errors = [error for error in values["errors"] if error]
    answers = [int(length) for length in values["output_lens"]]
    if errors or len(answers) != len(scenario.turns) or min(answers, default=0) < 1:
        reasons = errors[0].strip().splitlines() if errors else [f"{len(answers)} of {len(scenario.turns)} requests"]
        first = reasons[-1] if reasons else "no reason was given"
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
