"""What a benchmark keeps: every round with its raw latencies, grouped by launch, and where it comes from."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsv41_serving.errors import InputError, first_line

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
# Metric -> whether more is better.
METRICS = {
    "decode_tok_s": True,
    "output_tok_s": True,
    "ttft_ms": False,
    "ttft_p99_ms": False,
    "itl_ms": False,
    "itl_p99_ms": False,
    "answer_ms": False,
}
TITLES = {
    "decode_tok_s": "decode, tok/s a request",
    "output_tok_s": "output, tok/s in all",
    "ttft_ms": "first token, ms",
    "ttft_p99_ms": "first token p99, ms",
    "itl_ms": "between tokens, ms",
    "itl_p99_ms": "between tokens p99, ms",
    "answer_ms": "whole answer, ms",
}


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Round(_Row):
    """One run of a scenario's requests. Times in seconds."""

    duration_s: float = Field(gt=0)
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    ttft_s: tuple[float, ...]
    """Of each request that completed."""
    itl_s: tuple[tuple[float, ...], ...]
    """Gaps between streamed events, of each request that completed."""
    answers: tuple[int, ...]
    """Output tokens of each."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not len(self.ttft_s) == len(self.itl_s) == len(self.answers):
            raise ValueError("ttft_s, itl_s and answers are not of one length")
        return self

    def metrics(self) -> dict[str, float]:
        """Return every metric of `METRICS`: medians or p99 over requests or gaps; a metric without data is left out.

        Decode rate of a request: tokens after the first streamed event over the time from it to the last one, so that
        prefill does not count. A whole answer lasts from the request to its last event. With fewer than a hundred requests
        the p99 of the first token is that of the slowest.
        """
        gaps = [gap for request in self.itl_s for gap in request]
        rates = [
            (tokens - 1) / sum(request)
            for tokens, request in zip(self.answers, self.itl_s, strict=True)
            if tokens > 1 and sum(request) > 0
        ]
        found = {"output_tok_s": self.output_tokens / self.duration_s}
        if rates:
            found["decode_tok_s"] = statistics.median(rates)
        if self.ttft_s:
            found["ttft_ms"] = statistics.median(self.ttft_s) * 1e3
            found["ttft_p99_ms"] = percentile(list(self.ttft_s), 0.99) * 1e3
            whole = (first + sum(gaps) for first, gaps in zip(self.ttft_s, self.itl_s, strict=True))
            found["answer_ms"] = statistics.median(whole) * 1e3
        if gaps:
            found["itl_ms"] = statistics.median(gaps) * 1e3
            found["itl_p99_ms"] = percentile(gaps, 0.99) * 1e3
        return found


class Run(_Row):
    """One scenario on one launch: the rounds after the one that warms up."""

    scenario: str
    says: str
    at_once: int
    prompts_sha256: str
    input_tokens: int
    command: str
    floor_ms: float | None = None
    """Least time of a decode step by memory bandwidth; None where that is unknown."""
    rounds: tuple[Round, ...] = Field(min_length=1)

    def metrics(self) -> dict[str, float]:
        """Return the median over the rounds of every metric that all of them have."""
        each = [round_.metrics() for round_ in self.rounds]
        names = [name for name in METRICS if all(name in values for values in each)]
        return {name: statistics.median(values[name] for values in each) for name in names}


class Launch(_Row):
    """One start of the deployment."""

    started_at: str
    runs: tuple[Run, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _differ(self) -> Self:
        names = [run.scenario for run in self.runs]
        if len(set(names)) < len(names):
            raise ValueError("a scenario is there twice")
        return self


class ResultSet(_Row):
    """All that one command measured of one configuration."""

    format: int = FORMAT
    label: str
    provenance: dict[str, Any]
    deployment: dict[str, Any]
    """Profile, shape, URL, overrides, model, hash of the plan, and the simulated acceptance when there is one."""
    launches: tuple[Launch, ...] = Field(min_length=1)

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names, in the order of the first launch."""
        return tuple(run.scenario for run in self.launches[0].runs)

    def runs_of(self, scenario: str) -> list[Run]:
        """Return the run of `scenario` of each launch that has it."""
        return [run for launch in self.launches for run in launch.runs if run.scenario == scenario]

    @property
    def simulated(self) -> str:
        """The simulated acceptance length; empty when acceptance is real."""
        return str(self.deployment.get("simulated_acceptance") or "")


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that `share` of `values` do not exceed. `values` may not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def read_result(path: Path) -> ResultSet:
    """Return the result set in `path`. Raises InputError when it is none, or of another format."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            raise InputError(
                f"has format {values['format']}, this release reads {FORMAT}", where=str(path), remedy="measure again"
            )
        return ResultSet.model_validate(values)
    except FileNotFoundError:
        raise InputError("does not exist", where=str(path), remedy="name a file that `dsv41 bench run` wrote") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(
            f"is no result set: {first['msg'][:1].lower()}{first['msg'][1:]}",
            where=f"{path}, key {key}" if key else str(path),
            remedy="name a file that `dsv41 bench run`, `scaling` or `compare` wrote",
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"is no result set ({first_line(error)})",
            where=str(path),
            remedy="name a file that `dsv41 bench run` wrote",
        ) from None


def write_result(result: ResultSet, path: Path) -> None:
    """Write `result` to `path`, directories included. Raises InputError when it cannot be written."""
    write_whole(path, result.model_dump_json(indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path`, directories included, so that nobody ever reads half of it. Raises InputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", where=str(path), remedy="choose another --out"
        ) from None
