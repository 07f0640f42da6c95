"""Look at the machine once, for every check. The only part of this room that reads anything."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.capacity import estimate_node, read_shape, request
from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts.copying import try_copying
from dsv41_serving.facts.directory import read_directory, read_secret
from dsv41_serving.facts.host import read_host
from dsv41_serving.facts.packages import read_packages
from dsv41_serving.plan import Installation, make_plan
from dsv41_serving.preflight.check import Scene
from dsv41_serving.preflight.checkpoint import read_checkpoint
from dsv41_serving.preflight.traces import read_traces
from dsv41_serving.resources import lock_file
from dsv41_serving.transport.baseline import keep_baseline
from dsv41_serving.transport.proof import read_proof

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.capacity import NodeCapacity
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.spec import LoadedSpec, NodeSpec


def gather_scene(
    loaded: LoadedSpec, facts: Facts, root: Path, *, python: str, hashes: bool = False, arguments: Sequence[str] = ()
) -> Scene:
    """Return what the checks look at, for the description `loaded` on the machine `facts` read below `root`.

    On the machine itself, not below another root, the hand-off is measured when its baseline is absent or stale, there is a
    state directory to keep it in, and nothing serves: beside what serves it would measure that, and find its memory taken.
    `arguments` are the global options that mean this node.

    A description that does not fit the machine is part of the scene, not an error. Raises InputError for a manifest that
    does not exist and for a malformed file of the kernel.
    """
    spec = loaded.spec
    made, problem = None, None
    try:
        made = make_plan(loaded, facts, Installation(python=python))
    except InputError as error:
        problem = error
    traces = read_traces(spec.node.state_dir)
    hand_off_problem = ""
    if made is not None and root == Path("/") and Path(made.state_dir).is_dir() and not traces.running:
        try:
            keep_baseline(spec, made, facts, arguments=arguments, say=lambda _: None)
        except GateError as error:
            hand_off_problem = str(error)
        except InputError:
            pass  # nothing is known of the model, or the state directory is not ours: other checks say that
        traces = replace(traces, transport=read_proof(made.state_dir))
    places = {"state": spec.node.state_dir, "cache": spec.node.cache_dir, "temporary": tempfile.gettempdir()}
    if spec.model.path:
        places["model"] = spec.model.path
    crash = spec.engine.args.get("crash-dump-folder")
    if isinstance(crash, str):
        places["crash"] = crash
    host = read_host(root)
    return Scene(
        spec=spec,
        made=made,
        problem=problem,
        facts=facts,
        host=host,
        directories={name: read_directory(path, root) for name, path in places.items()},
        secrets={
            f"router.{key}": read_secret(path, root)
            for key in ("api_key_file", *(("tls_cert_file", "tls_key_file") if spec.runs_here("router") else ()))
            if (path := getattr(spec.router, key))
        },
        checkpoint=read_checkpoint(spec, hashes=hashes),
        capacity=_estimate(spec, facts),
        packages=read_packages(lock_file()),
        copying=try_copying(spec.node.user if os.geteuid() == 0 and spec.node.user in host.users else ""),
        traces=traces,
        hand_off_problem=hand_off_problem,
    )


def _estimate(spec: NodeSpec, facts: Facts) -> NodeCapacity | None:
    """Return what the shape can hold here; None when this is not known, which other checks say."""
    if not facts.gpus:
        return None
    try:
        shape = read_shape(request.find_checkpoint(spec), spec.model.name)
        return estimate_node(spec, shape, request.find_gpu_bytes(spec, facts, None))
    except InputError:
        return None
