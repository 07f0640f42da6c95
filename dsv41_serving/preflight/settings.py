"""Do the settings of the plan avoid the combinations that others hung or crashed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.preflight.check import Check, engines_of, failed, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.plan.model import Service
    from dsv41_serving.preflight.check import Outcome, Scene

_SM120_CONTEXT = 262_144
_SPECULATION = ("speculative-algorithm", "speculative-num-draft-tokens", "speculative-dspark-block-size")
_PCIE_ONLY = "12.0"


def judge_fit(scene: Scene) -> Outcome | None:
    """Return whether description and machine make a plan at all."""
    if scene.problem is not None:
        where = f"{scene.problem.where}: " if scene.problem.where else ""
        return failed(f"{where}{scene.problem.problem}", scene.problem.remedy)
    return passed(f"profile {scene.spec.profile}, shape {scene.spec.shape}, {len(scene.plan.services)} services")


def judge_values(scene: Scene) -> Outcome | None:
    """Return whether somebody has run the values of the profile."""
    if scene.spec.provenance.status == "unmeasured":
        return warned(
            f"nobody has run profile {scene.spec.profile} on its hardware; each value names its source",
            f"dsv41 --profile {scene.spec.profile} config explain KEY",
        )
    return passed(f"measured: {scene.spec.provenance.result}")


def judge_speculation(scene: Scene) -> Outcome | None:
    """Return whether both roles speculate alike: the draft's window travels with the hand-off, in one layout."""
    flags = {engine.name: _read_flags(engine, _SPECULATION) for engine in scene.plan.engines}
    if not any(flags.values()):
        return passed("off on every engine")
    if len(set(flags.values())) > 1:
        named = "; ".join(f"{name}: {' '.join(each) or 'off'}" for name, each in flags.items())
        return failed(named, "set speculation in engine.args, the same for every engine")
    return passed(f"the same on every engine: {' '.join(next(iter(flags.values())))}")


def judge_window(scene: Scene) -> Outcome | None:
    """Return whether the pool of the sliding window is sized from a known cap of running requests."""
    loose = [engine.name for engine in scene.plan.engines if "--max-running-requests" not in engine.argv]
    ratio = [engine.name for engine in scene.plan.engines if "--swa-full-tokens-ratio" in engine.argv]
    if loose or ratio:
        return failed(
            f"{', '.join(loose or ratio)}: the window pool is not sized from the cap: long prompts are never scheduled",
            "set engines.NAME.max_running_requests, and no swa-full-tokens-ratio",
        )
    return passed("capped on every engine")


def judge_graphs(scene: Scene) -> Outcome | None:
    """Return whether decode runs captured graphs, which hide the cost of hundreds of launches."""
    decoding = (*engines_of(scene.plan, "decode"), *engines_of(scene.plan, "aggregated"))
    off = [engine.name for engine in decoding if "--disable-cuda-graph" in engine.argv]
    if off:
        return failed(f"{', '.join(off)}: graphs are off", "remove disable-cuda-graph from engine.args")
    return passed("captured on every engine that decodes")


def judge_context(scene: Scene) -> Outcome | None:
    """Return whether the context is one that this architecture was seen to hold."""
    length = scene.spec.engine.context_length
    if scene.spec.engine.compute_capability == _PCIE_ONLY and length > _SM120_CONTEXT:
        return warned(
            f"{length} tokens on compute capability 12.0: the indexer's transient ran out of memory beyond 290,000",
            f"set engine.context_length = {_SM120_CONTEXT}",
        )
    return passed(f"{length} tokens")


def judge_data_parallel(scene: Scene) -> Outcome | None:
    """Return whether data parallelism stays off where it crashes."""
    wide = [engine.name for engine in scene.plan.engines if _read_flags(engine, ("dp-size", "data-parallel-size"))]
    if wide and scene.spec.engine.compute_capability == _PCIE_ONLY:
        return failed(
            f"{', '.join(wide)}: data parallelism crashes on compute capability 12.0", "remove dp-size from args"
        )
    return passed("tensor parallel alone" if not wide else ", ".join(wide))


def judge_answer_cap(scene: Scene) -> Outcome | None:
    """Return whether an answer has an end."""
    contract, length = scene.spec.contract, scene.spec.engine.context_length
    if min(contract.max_tokens, contract.max_tokens_limit or length) >= length > _SM120_CONTEXT:
        return warned(f"an answer may be {length} tokens long", "set contract.max_tokens and contract.max_tokens_limit")
    return passed(f"{contract.max_tokens} tokens when a request names no limit")


def judge_patience(scene: Scene) -> Outcome | None:
    """Return whether an unanswered hand-off gives up before the router does."""
    waits = [
        int(value)
        for engine in scene.plan.engines
        if (value := engine.env.get("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "")).isdecimal()
    ]
    limit = scene.spec.router.request_timeout_s
    if all(engine.role == "aggregated" for engine in scene.spec.active_engines().values()):
        return None
    if max(waits, default=300) >= limit:
        return warned(
            f"a hand-off may wait {max(waits, default=300)} s, the router gives up after {limit} s",
            "set engines.decode.env.SGLANG_DISAGGREGATION_WAITING_TIMEOUT below router.request_timeout_s",
        )
    return passed(f"{max(waits, default=300)} s, below the router's {limit} s")


def _read_flags(engine: Service, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags of `names` that `engine` is started with, each with its value."""
    found = []
    for flag, value in zip(engine.argv, (*engine.argv[1:], ""), strict=True):
        if flag.removeprefix("--") in names:
            found.append(f"{flag} {value}")
    return tuple(found)


CHECKS = (
    Check("fit", "Do description and machine make a plan?", "a shape that needs more than is there", judge_fit),
    Check("values", "Has somebody run these values?", "an unmeasured value looks like a measured one", judge_values),
    Check(
        "speculation",
        "Do both roles speculate alike?",
        "sglang#38819, #33043, #30461",
        judge_speculation,
        needs_plan=True,
    ),
    Check("window", "Is the window pool sized from a cap?", "sglang#31205, #36458", judge_window, needs_plan=True),
    Check(
        "graphs",
        "Does decode run captured graphs?",
        "sglang-omni#1599: 30 times slower",
        judge_graphs,
        needs_gpus=True,
        needs_plan=True,
    ),
    Check("context", "Was this context seen to work here?", "local-ai-registry#55", judge_context, needs_gpus=True),
    Check(
        "data-parallel",
        "Is data parallelism off where it crashes?",
        "vllm#41834",
        judge_data_parallel,
        needs_gpus=True,
        needs_plan=True,
    ),
    Check("answer-cap", "Has an answer an end?", "a 714,000-token answer (DS4.1 recipe)", judge_answer_cap),
    Check(
        "patience",
        "Does a hand-off give up before the router?",
        "sglang#29017, #10110",
        judge_patience,
        needs_plan=True,
    ),
)
