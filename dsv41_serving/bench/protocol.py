"""The protocol on a running deployment: same prompts, caches cleared before every round, the first round thrown away."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.bench.generator import Generator
from dsv41_serving.bench.result import Launch, Run
from dsv41_serving.bench.scenario import Scenario, Words, write_prompts
from dsv41_serving.capacity.engine import read_settings
from dsv41_serving.capacity.roofline import find_bandwidth, least_step_s
from dsv41_serving.errors import GateError, InputError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsv41_serving.capacity.shape import ModelShape
    from dsv41_serving.check.access import Access
    from dsv41_serving.plan.model import Plan
    from dsv41_serving.spec.model import NodeSpec

SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
_FLUSH_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Target:
    """What is measured."""

    url: str
    """Router, or one engine."""
    model: str
    tokenizer: str
    """Directory of the served model."""
    engines: tuple[str, ...]
    """URLs whose caches are cleared."""
    access: Access
    floor_ms: Callable[[Scenario], float | None] = lambda _: None
    """Least time of a decode step under a load."""

    @property
    def env(self) -> dict[str, str]:
        """What the load generator finds key and certificate in."""
        key = {"OPENAI_API_KEY": self.access.key} if self.access.key else {}
        return {**key, **({"SSL_CERT_FILE": self.access.certificate} if self.access.certificate else {})}


def choose_target(plan: Plan, access: Access, floor_ms: Callable[[Scenario], float | None] | None = None) -> Target:
    """Return what `plan` serves, reached by `access`: its router, or one of its engines.

    Raises InputError for half of a pair, which answers only through the router.
    """
    half = next(
        (each for each in plan.workers if each.url == access.origin and each.kind in {"prefill", "decode"}), None
    )
    if half is not None:
        raise InputError(
            f"{half.name} is half of a pair and does not answer alone",
            where=f"--url {half.url}",
            remedy="leave --url away",
        )
    return Target(
        floor_ms=floor_ms or (lambda _: None),
        url=access.origin,
        model=plan.served_model_name,
        tokenizer=plan.model.path,
        engines=tuple(worker.url for worker in plan.workers),
        access=access,
    )


def find_engine_url(plan: Plan) -> str:
    """Return the address of the only engine of `plan`. Raises InputError when it has several, which need a router."""
    if len(plan.engines) != 1:
        names = " and ".join(engine.name for engine in plan.engines)
        raise InputError(
            f"{names} answer together, behind a router",
            where=f"shape {plan.shape}",
            remedy="measure a shape of one engine directly",
        )
    return plan.engines[0].url


def measure_launch(
    scenarios: Sequence[Scenario], target: Target, words: Words, *, rounds: int, say: Callable[[str], None]
) -> Launch:
    """Run every scenario `rounds` times, and once before to warm up, and return what was kept.

    Raises GateError when a request fails or a cache cannot be cleared.
    """
    started = datetime.now(tz=UTC).isoformat(timespec="seconds")
    with Generator({**os.environ, **target.env}) as generator:
        runs = [_measure_scenario(generator, scenario, target, words, rounds=rounds, say=say) for scenario in scenarios]
    return Launch(started_at=started, runs=tuple(runs))


def _measure_scenario(
    generator: Generator, scenario: Scenario, target: Target, words: Words, *, rounds: int, say: Callable[[str], None]
) -> Run:
    prompts = write_prompts(scenario, words)
    kept, command = [], ""
    for number in range(rounds + 1):
        clear_caches(target)
        one, command = generator.run_round(
            scenario, prompts, url=target.url, model=target.model, tokenizer=target.tokenizer
        )
        shown = ", ".join(f"{name} {value:.4g}" for name, value in one.metrics().items())
        say(f"{scenario.name} {'warm-up' if number == 0 else f'round {number} of {rounds}'}: {shown}")
        if number:
            kept.append(one)
    return Run(
        scenario=scenario.name,
        says=scenario.says,
        at_once=scenario.at_once,
        prompts_sha256=prompts.sha256,
        input_tokens=prompts.tokens,
        command=command,
        floor_ms=target.floor_ms(scenario),
        rounds=tuple(kept),
    )


def find_floor(spec: NodeSpec, shape: ModelShape) -> Callable[[Scenario], float | None]:
    """Return what tells the least time of a decode step, in ms, under a load on the engines of `spec` that decode.

    The load is spread over them; a request holds its prompt and half of its answer.
    """
    engines = [read_settings(spec, name) for name, each in spec.active_engines().items() if each.role != "prefill"]
    bandwidth = find_bandwidth(engines[0])

    def tell(scenario: Scenario) -> float | None:
        if bandwidth is None:
            return None
        requests = -(-min(scenario.at_once, len(scenario.turns)) // len(engines))
        context = sum(turn.prompt + turn.answer // 2 for turn in scenario.turns) // len(scenario.turns)
        return least_step_s(shape, engines[0], requests, context, bandwidth) * 1e3

    return tell


def clear_caches(target: Target) -> None:
    """Forget cached prefixes on every engine. What the policy cache_aware remembers in the router stays: the result says so.

    Raises GateError when an engine does not.
    """
    for url in target.engines:
        try:
            response = httpx.post(f"{url}/flush_cache", timeout=_FLUSH_TIMEOUT_S)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise GateError(
                f"the cache cannot be cleared ({first_line(error)})",
                where=url,
                remedy="wait until nothing runs, then start again",
            ) from None


def describe_deployment(plan: Plan, target: Target, overrides: Sequence[str], scale: float) -> dict[str, Any]:
    """Return what a result must say of what was measured; the hash covers every command and environment of the plan."""
    services = [service.model_dump_json() for service in plan.services]
    through = "router" if target.url == plan.router.url else "engine"
    return {
        "node": plan.node,
        "profile": plan.profile,
        "shape": plan.shape,
        "url": target.url,
        "through": through,
        "model": plan.model.manifest,
        "overrides": list(overrides),
        "plan_sha256": hashlib.sha256("\n".join(services).encode()).hexdigest(),
        "scale": scale,
        "simulated_acceptance": find_simulated(plan),
        "router_policy": _find_policy(plan) if through == "router" else "",
    }


def _find_policy(plan: Plan) -> str:
    """Return by what the router chooses an engine: one policy, or those of both groups."""
    argv = plan.router.argv
    return ", ".join(dict.fromkeys(argv[place + 1] for place, word in enumerate(argv) if word.endswith("policy")))


def find_simulated(plan: Plan) -> str:
    """Return the acceptance length that engines of `plan` simulate; empty when acceptance is real."""
    lengths = {engine.env[SIMULATED] for engine in plan.engines if engine.env.get(SIMULATED, "-1") not in {"", "-1"}}
    return ", ".join(sorted(lengths))
