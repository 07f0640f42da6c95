"""Make the plan: spec and facts in, everything that follows from them out. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError
from dsv41_serving.plan.engine import plan_engine
from dsv41_serving.plan.files import render_files
from dsv41_serving.plan.memory import budget_memory, needs_of
from dsv41_serving.plan.model import Installation, Placement, Plan, ServedModel
from dsv41_serving.plan.placement import place_engines
from dsv41_serving.plan.ports import check_distinct
from dsv41_serving.plan.router import plan_router

if TYPE_CHECKING:
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.spec.load import LoadedSpec
    from dsv41_serving.spec.model import Contract


def make_plan(loaded: LoadedSpec, facts: Facts, installation: Installation) -> Plan:
    """Return the plan of one node: what runs on it, and where the rest of its layout is found.

    Raises InputError, with the remedy, when spec and machine do not fit: GPUs, ports inside the plan, refused flags.
    Whether memory suffices and ports are free at this moment is asked by `check.start`, right before something starts.
    """
    try:
        return _make_plan(loaded, facts, installation)
    except InputError as error:
        raise _name_file(error, loaded) from None


def _make_plan(loaded: LoadedSpec, facts: Facts, installation: Installation) -> Plan:
    spec = loaded.spec
    placements = place_engines(spec, facts)
    model = ServedModel(
        manifest=spec.model.name,
        checkpoint=spec.model.path,
        path=f"{spec.node.state_dir}/served/{spec.model.name}",
        generation_config=_sampling_defaults(spec.contract),
    )
    # Where engines of other hosts sit on theirs is known there alone, and nobody here needs it.
    unknown = Placement(gpus=(), numa_node=None, cpus=())
    workers = tuple(
        plan_engine(spec, name, placements.get(name, unknown), python=installation.python, model_path=model.path)
        for name in spec.active_engines()
    )
    everything = (*workers, plan_router(spec, workers, python=installation.python))
    engines = tuple(
        engine.model_copy(update={"memory": needs_of(spec, engine.name, engine.placement)})
        for engine in workers
        if engine.name in placements
    )
    services = (*engines, *(each for each in everything if not each.is_engine and spec.runs_here(each.name)))
    check_distinct(services)
    plan = Plan(
        node=spec.node.name,
        profile=spec.profile,
        shape=spec.shape,
        state_dir=spec.node.state_dir,
        cache_dir=spec.node.cache_dir,
        served_model_name=spec.contract.served_model_name,
        contract=spec.contract,
        monitoring=spec.monitoring,
        model=model,
        services=services,
        elsewhere=tuple(each for each in everything if not spec.runs_here(each.name)),
        hosts={name: host.address for name, host in spec.hosts.items()},
        memory=budget_memory(engines, facts),
    )
    return plan.model_copy(update={"files": render_files(loaded, plan, installation)})


def _sampling_defaults(contract: Contract) -> dict[str, float | bool]:
    """What generation_config.json must say over the checkpoint's own; a value left to the checkpoint is not in it."""
    chosen = {"temperature": contract.temperature, "top_p": contract.top_p}
    values = {key: value for key, value in chosen.items() if value != "checkpoint"}
    return {"do_sample": True, **values} if values else {}


def _name_file(error: InputError, loaded: LoadedSpec) -> InputError:
    """Put the file that set the key in front of an error that names the key alone."""
    key = error.where.removeprefix("key ")
    if key == error.where:
        return error
    return InputError(error.problem, where=f"{loaded.find_origin(key)}, key {key}", remedy=error.remedy)
