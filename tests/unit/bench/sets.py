"""Result sets for the tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv41_serving.bench.result import Launch, ResultSet, Round, Run

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_round(step_s: float = 0.01, *, tokens: int = 11, requests: int = 2, ttft_s: float = 0.1) -> Round:
    """Return a round whose requests decode at one step each `step_s`."""
    gaps = (step_s,) * (tokens - 1)
    return Round(
        duration_s=ttft_s + step_s * (tokens - 1),
        completed=requests,
        failed=0,
        input_tokens=100,
        output_tokens=tokens * requests,
        ttft_s=(ttft_s,) * requests,
        itl_s=(gaps,) * requests,
        answers=(tokens,) * requests,
    )


def make_run(scenario: str = "single", rounds: Sequence[Round] = (), **changes: Any) -> Run:
    values: dict[str, Any] = {
        "scenario": scenario,
        "says": "one request",
        "at_once": 1,
        "prompts_sha256": "ab" * 32,
        "input_tokens": 100,
        "command": "python -m sglang.benchmark.serving",
        "rounds": tuple(rounds) or (make_round(),),
    }
    return Run(**{**values, **changes})


def make_set(*launches: Sequence[Run], label: str = "here", **deployment: Any) -> ResultSet:
    """Return a result set with one launch for each group of runs."""
    return ResultSet(
        label=label,
        provenance={
            "date": "2026-11-29",
            "command": "dsv41 bench run single",
            "commit": "abc1234",
            "versions": {"sglang": "0.5.23", "nixl": "1.5.1"},
            "gpus": "",
            "machine": {"cpu": "AMD EPYC", "cores": 2},
        },
        deployment={
            "profile": "embedded",
            "shape": "pd",
            "through": "router",
            "plan_sha256": "cd" * 32,
            "overrides": [],
            "scale": 1.0,
            "simulated_acceptance": "",
            **deployment,
        },
        launches=tuple(Launch(started_at="2026-11-29T00:00:00+00:00", runs=tuple(runs)) for runs in launches),
    )
