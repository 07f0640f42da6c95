"""What a check is: a pure function from the scene (description, plan, facts) to a verdict, what was seen, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsv41_serving.capacity.estimate import NodeCapacity
    from dsv41_serving.errors import InputError
    from dsv41_serving.facts.copying import Copying
    from dsv41_serving.facts.directory import Directory, SecretFile
    from dsv41_serving.facts.host import Host
    from dsv41_serving.facts.model import Facts, Gpu
    from dsv41_serving.facts.packages import Packages
    from dsv41_serving.plan.model import Plan, Service
    from dsv41_serving.preflight.checkpoint import CheckpointFacts
    from dsv41_serving.preflight.traces import Traces
    from dsv41_serving.spec.model import NodeSpec

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Outcome:
    """The answer to one check."""

    verdict: Verdict
    seen: str
    remedy: str = ""
    """What to do, a command where there is one; empty when it passed."""


@dataclass(frozen=True)
class Scene:
    """Everything a check may look at. Gathered once, by `gather`."""

    spec: NodeSpec
    made: Plan | None
    """None when description and machine do not fit; `problem` says why."""
    problem: InputError | None
    facts: Facts
    host: Host
    directories: Mapping[str, Directory]
    """By what they are for: state, cache, temporary, and, where the plan has them, model and crash."""
    secrets: Mapping[str, SecretFile]
    """By the key of the description that names it, such as router.api_key_file."""
    checkpoint: CheckpointFacts
    capacity: NodeCapacity | None
    """What the shape can hold on these GPUs; None where the sizes of the model or of a GPU are not known."""
    packages: Packages
    copying: Copying
    traces: Traces
    hand_off_problem: str = ""
    """Why the hand-off could not be measured just now."""

    @property
    def plan(self) -> Plan:
        """The plan. Only for checks that are asked after it could be made."""
        if self.made is None:
            raise RuntimeError("a check that needs the plan was asked without one")
        return self.made

    @property
    def on_gpus(self) -> bool:
        """Whether this node serves on GPUs."""
        return self.spec.engine.device == "cuda"

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the plan; every GPU of the machine when there is no plan."""
        if self.made is None:
            return self.facts.gpus
        wanted = {index for service in self.made.services for index in service.placement.gpus}
        return tuple(gpu for gpu in self.facts.gpus if gpu.index in wanted)

    @property
    def hands_off(self) -> bool:
        """Whether the shape splits prefill from decode, and both are on this host."""
        here = {engine.role for name, engine in self.spec.active_engines().items() if self.spec.runs_here(name)}
        return {"prefill", "decode"} <= here


@dataclass(frozen=True)
class Check:
    """One question of a family."""

    name: str
    asks: str
    """The question, in words a person understands without the code."""
    why: str
    """The public report or document that made it a check."""
    judge: Callable[[Scene], Outcome | None]
    """Returns None where the question does not arise."""
    needs_gpus: bool = False
    """Asked only where the node serves on GPUs."""
    each_gpu: bool = False
    """Asked only where GPUs answered, too: it says something about each of them."""
    needs_plan: bool = False

    def applies(self, scene: Scene) -> bool:
        """Return whether `judge` may be asked in this scene."""
        return (
            (scene.on_gpus or not (self.needs_gpus or self.each_gpu))
            and (bool(scene.gpus) or not self.each_gpu)
            and (scene.made is not None or not self.needs_plan)
        )


def passed(seen: str) -> Outcome:
    """Return a pass."""
    return Outcome("pass", seen)


def warned(seen: str, remedy: str) -> Outcome:
    """Return a warning: it will serve, worse than it could, or it could not be seen."""
    return Outcome("warn", seen, remedy)


def failed(seen: str, remedy: str) -> Outcome:
    """Return a failure: it will not serve, or not the way it is described."""
    return Outcome("fail", seen, remedy)


def join_gpus(gpus: tuple[Gpu, ...] | list[Gpu]) -> str:
    """Return GPU indices as text: '0, 3'."""
    return ", ".join(str(gpu.index) for gpu in gpus)


def engines_of(plan: Plan, kind: str) -> tuple[Service, ...]:
    """Return the engines of one kind."""
    return tuple(engine for engine in plan.engines if engine.kind == kind)
