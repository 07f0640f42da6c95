"""A scene in which nothing is wrong, and changes to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsv41_serving.capacity import estimate_node, read_shape
from dsv41_serving.check.start import PINNED
from dsv41_serving.errors import InputError
from dsv41_serving.facts import Limits
from dsv41_serving.facts.copying import Copying
from dsv41_serving.facts.directory import Directory, SecretFile
from dsv41_serving.facts.host import Host
from dsv41_serving.facts.model import Gpu, GpuHealth, Process
from dsv41_serving.facts.packages import Packages
from dsv41_serving.preflight.check import Scene
from dsv41_serving.preflight.checkpoint import CheckpointFacts
from dsv41_serving.preflight.traces import Traces
from dsv41_serving.spec import load_spec
from dsv41_serving.transport.proof import Collective, Proof, list_environments
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_serving.facts import Facts

    Change = Callable[[Scene], Scene]

GB = 1_000_000_000
UNLIMITED = Limits(memlock_soft=None, memlock_hard=None, nofile_soft=1048576, nofile_hard=1048576)


def good_scene(facts: Facts, profile: str, *overrides: str) -> Scene:
    """Return a node of `profile` on the machine `facts` in which every check passes that can."""
    spec = load_spec(profile=profile, overrides=overrides).spec
    on_gpus = bool(facts.gpus) and spec.engine.device == "cuda"
    gpus = tuple(gpu.model_copy(update={"health": healthy(gpu, len(facts.gpus))}) for gpu in facts.gpus)
    facts = facts.model_copy(update={"gpus": gpus})
    try:
        made, problem = plan_for(facts, profile, *overrides), None
    except InputError as error:
        made, problem = None, error
    checkpoint = CheckpointFacts(
        name=spec.model.name,
        path="/srv/models/deepseek-v4.1-flash",
        has_digests=True,
        files=60,
        size_bytes=510 * GB,
        read_bytes_per_s=6.0 * GB,
        revision="dba1be0a",
        former_revisions={"fb2764a5": "its encoder is the pre-release's"},
    )
    return Scene(
        spec=spec,
        made=made,
        problem=problem,
        facts=facts,
        host=Host(
            pid_max=4194304,
            threads_max=1000000,
            somaxconn=4096,
            port_range=(32768, 60999),
            reserved_ports=(),
            governors=("performance",),
            first_pid_namespace=True,
            memory_limit_bytes=None,
            pids_limit=None,
            loopback_up=True,
            modules=("nvidia", "nvidia_uvm"),
            init_limits=UNLIMITED,
            users=("dsv41", "root"),
            gpu_faults=(),
        ),
        directories={name: directory(f"/srv/{name}") for name in ("state", "cache", "temporary", "model", "crash")},
        secrets={},
        checkpoint=checkpoint,
        capacity=estimate_node(spec, read_shape(None, "deepseek-v4.1-flash"), 143_771 << 20) if on_gpus else None,
        packages=Packages(
            python=(3, 11),
            versions=dict(PINNED),
            locked=260,
            differences=(),
            torch_cuda="13.0",
            engine_plugins={
                **dict.fromkeys(("dsv41_contract", "dsv41_handoff", "dsv41_kernels"), "dsv41-serving"),
                "other": "other-dist",
            },
            reasoning_parsers=("deepseek-v4", "deepseek-v41"),
            tool_parsers=("deepseekv4", "deepseekv41"),
        ),
        copying=Copying(pidfd_getfd="ok", process_vm_readv="ok"),
        traces=Traces(
            running=(),
            own_pids=frozenset(),
            leftovers=(),
            strangers=(),
            stale=(),
            transport=Proof(
                date="2026-11-29",
                node="node",
                user="dsv41",
                backend="UCX",
                prompt_ms=12.0,
                pairs=(),
                provenance={},
                kernel_release=facts.kernel_release,
                driver_version=facts.driver_version,
                lane="cuda_ipc",
                best_gb_s=230.0,
                reason="",
                remedy="",
                environment=list_environments(made) if made else {},
                collectives=tuple(
                    Collective(engine=engine.name, gpus=engine.placement.gpus, bus_gb_s=380.0, problem="")
                    for engine in (made.engines if made else ())
                    if len(engine.placement.gpus) > 1
                ),
            ),
        ),
    )


def healthy(gpu: Gpu, count: int) -> GpuHealth:
    """Return the condition of a sound GPU of a machine with `count`."""
    return GpuHealth(
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        power_limit_mw=700000,
        power_default_mw=700000,
        slowdowns=(),
        pcie_width=16,
        pcie_width_max=16,
        mig=False,
        compute_mode="default",
        p2p_peers=tuple(index for index in range(count) if index != gpu.index),
    )


def directory(path: str) -> Directory:
    """Return a local, writable directory with room."""
    return Directory(
        path=path,
        exists=True,
        writable=True,
        free_bytes=900 * GB,
        free_files=1_000_000,
        filesystem="xfs",
        noexec=False,
    )


def process(pid: int, *command: str) -> Process:
    """Return a process of user 1000."""
    return Process(
        pid=pid, parent_pid=1, start_ticks=1, start_time=None, state="S", command=command, cgroup=None, uid=1000
    )


def host(**values: Any) -> Change:
    """Change values of the host."""
    return lambda scene: replace(scene, host=scene.host.model_copy(update=values))


def facts(**values: Any) -> Change:
    """Change values of the facts."""
    return lambda scene: replace(scene, facts=scene.facts.model_copy(update=values))


def kernel(**values: Any) -> Change:
    """Change kernel settings."""
    return lambda scene: facts(kernel=scene.facts.kernel.model_copy(update=values))(scene)


def memory(**values: Any) -> Change:
    """Change memory of the machine."""
    return lambda scene: facts(memory=scene.facts.memory.model_copy(update=values))(scene)


def gpu(index: int, **values: Any) -> Change:
    """Change one GPU."""

    def change(scene: Scene) -> Scene:
        gpus = [each.model_copy(update=values) if each.index == index else each for each in scene.facts.gpus]
        return facts(gpus=tuple(gpus))(scene)

    return change


def health(index: int, **values: Any) -> Change:
    """Change the condition of one GPU."""

    def change(scene: Scene) -> Scene:
        found = next(each for each in scene.facts.gpus if each.index == index)
        return gpu(index, health=found.health.model_copy(update=values))(scene)

    return change


def place(name: str, **values: Any) -> Change:
    """Change one directory."""
    return lambda scene: replace(
        scene, directories={**scene.directories, name: scene.directories[name].model_copy(update=values)}
    )


def checkpoint(**values: Any) -> Change:
    """Change the model on disk."""
    return lambda scene: replace(scene, checkpoint=replace(scene.checkpoint, **values))


def secret(key: str, *, exists: bool = True, open_to_others: bool = False) -> Change:
    """Let the description name a file with a key."""
    file = SecretFile(path="/etc/dsv41/key", exists=exists, open_to_others=open_to_others)
    return lambda scene: replace(scene, secrets={**scene.secrets, key: file})


def packages(**values: Any) -> Change:
    """Change what is installed."""
    return lambda scene: replace(scene, packages=scene.packages.model_copy(update=values))


def traces(**values: Any) -> Change:
    """Change what earlier runs left."""
    return lambda scene: replace(scene, traces=replace(scene.traces, **values))


def spec(*overrides: str) -> Change:
    """Override keys of the description and plan again."""

    def change(scene: Scene) -> Scene:
        fresh = good_scene(scene.facts, scene.spec.profile, *overrides)
        return replace(scene, spec=fresh.spec, made=fresh.made, problem=fresh.problem, capacity=fresh.capacity)

    return change


def engine_env(name: str, **values: str) -> Change:
    """Change the environment of one engine in the plan."""
    return change_engine(name, lambda service: service.model_copy(update={"env": {**service.env, **values}}))


def engine_argv(name: str, *more: str, without: str = "") -> Change:
    """Add to the command of one engine in the plan, or take a flag out."""
    return change_engine(
        name,
        lambda service: service.model_copy(
            update={"argv": (*(word for word in service.argv if word != without), *more)}
        ),
    )


def engine_word(name: str, old: str, new: str) -> Change:
    """Replace one word in the command of an engine."""
    return change_engine(
        name,
        lambda service: service.model_copy(
            update={"argv": tuple(new if word == old else word for word in service.argv)}
        ),
    )


def change_engine(name: str, change: Callable[[Any], Any]) -> Change:
    def apply(scene: Scene) -> Scene:
        services = tuple(change(each) if each.name == name else each for each in scene.plan.services)
        return replace(scene, made=scene.plan.model_copy(update={"services": services}))

    return apply
