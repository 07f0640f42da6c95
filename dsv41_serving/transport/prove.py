"""Run the pairs: two processes with the environments of the engines, one agent each, and read what they and UCX say."""

from __future__ import annotations

import os
import pwd
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.capacity.engine import read_settings
from dsv41_serving.errors import GateError
from dsv41_serving.facts.copying import try_copying
from dsv41_serving.facts.host import read_host
from dsv41_serving.plan.engine import WRITE_TABLES
from dsv41_serving.transport.collective import try_collectives
from dsv41_serving.transport.jobs import list_jobs, shorten
from dsv41_serving.transport.judge import judge_pair
from dsv41_serving.transport.lanes import choose_lane, find_lanes, find_write_lanes
from dsv41_serving.transport.proof import (
    BULK_BYTES,
    COUNTERS,
    Pair,
    Proof,
    Step,
    find_peers,
    keep_deciding,
    list_environments,
)
from dsv41_serving.transport.side import LAUNCH, ROUNDS, SHORT_ROUNDS, Task, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsv41_serving.capacity.shape import ModelShape
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.plan.model import Plan
    from dsv41_serving.spec.model import NodeSpec
    from dsv41_serving.transport.jobs import Job

_PATIENCE_S = 180.0


def prove_transport(
    spec: NodeSpec,
    plan: Plan,
    facts: Facts,
    shape: ModelShape,
    *,
    command: str,
    say: Callable[[str], None],
    short: bool = False,
) -> Proof:
    """Move KV-shaped memory between every pair of ranks of `plan`, let the GPUs of each engine sum, and return what was seen.

    The `short` form leaves out sizes and rounds, not pairs. Started by root on a node with the service user, the agents run as that user. Raises InputError when the shape hands
    nothing over or NIXL is missing, GateError when a pair cannot move anything.
    """
    host, copying = read_host(), try_copying()
    user = _choose_user(spec)
    pairs = []
    for source, source_rank, source_gpu, sink, sink_rank, sink_gpu in find_peers(plan):
        on_gpu = source_gpu is not None
        jobs = list_jobs(shape, read_settings(spec, sink), on_gpu=on_gpu)
        jobs = shorten(jobs) if short else jobs
        env = {name: keep_deciding(plan.service(name).env) for name in (source, sink)}
        say(f"{source}:{source_rank} -> {sink}:{sink_rank}")
        gpus = (source_gpu, sink_gpu) if source_gpu is not None and sink_gpu is not None else None
        run = run_pair(
            jobs,
            env[source],
            env[sink],
            gpus=(source_rank, sink_rank) if on_gpu else None,
            user=user,
            rounds=SHORT_ROUNDS if short else ROUNDS,
        )
        lanes = find_lanes(run.log)
        lane = choose_lane(find_write_lanes(run.log) or lanes)
        steps = tuple(_summarise(timing) for timing in run.timings)
        verdict = judge_pair(
            lane,
            max(step.best_gb_s for step in steps if step.bytes >= BULK_BYTES),
            gpus=gpus,
            env=env[source],
            facts=facts,
            host=host,
            copying=copying,
        )
        pairs.append(
            Pair(
                prefill=f"{source}:{source_rank}",
                decode=f"{sink}:{sink_rank}",
                gpus=gpus,
                lane=lane,
                lanes=lanes,
                steps=steps,
                matched=run.matched,
                reason=verdict.reason,
                remedy=verdict.remedy,
            )
        )
    slowest = min(pairs, key=lambda pair: pair.best_gb_s)
    provenance = describe_run(command)
    return Proof(
        date=provenance["date"],
        node=plan.node,
        user=user or pwd.getpwuid(os.geteuid()).pw_name,
        kernel_release=facts.kernel_release,
        driver_version=facts.driver_version,
        backend="UCX",
        lane=slowest.lane,
        best_gb_s=slowest.best_gb_s,
        prompt_ms=max(pair.steps[-1].median_ms for pair in pairs),
        reason=slowest.reason,
        remedy=slowest.remedy,
        pairs=tuple(pairs),
        provenance=provenance,
        environment=list_environments(plan),
        collectives=tuple(try_collectives(plan, say, user=user)),
        short=short,
    )


@dataclass(frozen=True)
class PairRun:
    """What two processes left: timings, UCX's own words, and whether the bytes matched."""

    timings: list[Timing]
    log: str
    matched: bool


def run_pair(
    jobs: tuple[Job, ...],
    source_env: Mapping[str, str],
    sink_env: Mapping[str, str],
    *,
    gpus: tuple[int, int] | None,
    user: str | None = None,
    rounds: int = ROUNDS,
) -> PairRun:
    """Run `jobs` from one process to another; `gpus` index each side's CUDA_VISIBLE_DEVICES. Raises GateError."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsv41-prove-")))
        source_task = Task("initiator", gpus[0] if gpus else None, jobs, rounds)
        sink_task = Task("target", gpus[1] if gpus else None, jobs, rounds)
        source = stack.enter_context(_Process(source_task, source_env, directory / "initiator.log", user))
        sink = stack.enter_context(_Process(sink_task, sink_env, directory / "target.log", user))
        offer, own = sink.receive(), source.receive()
        source.send(offer)
        sink.send(own)
        timings: list[Timing] = source.receive()
        sent = source.receive()
        sink.send("compare")
        arrived = sink.receive()
        log = f"{source.read_log()}\n{sink.read_log()}"
    return PairRun(timings, log, matched=sent == arrived)


class _Process:
    """One side: a process and the socket to it."""

    def __init__(self, task: Task, env: Mapping[str, str], log: Path, user: str | None) -> None:
        self._task, self._log = task, log
        ours, theirs = socket.socketpair()
        self._channel = Connection(ours.detach())
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, str(theirs.fileno())],
                env={
                    **_inherited(),
                    **env,
                    "UCX_LOG_LEVEL": "info",
                    "UCX_PROTO_INFO": WRITE_TABLES,
                    "PYTHONUNBUFFERED": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
            )
        self._channel.send(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, value: object) -> None:
        self._channel.send(value)

    def receive(self) -> Any:
        """Return the next answer. Raises GateError when the process ends or is silent."""
        try:
            if self._channel.poll(_PATIENCE_S):
                return self._channel.recv()
            problem = f"is silent for {_PATIENCE_S:.0f} s"
        except EOFError:
            problem = f"ended: {_find_error(self.read_log())}"
        raise GateError(
            f"the {self._task.role} {problem}",
            where="transport",
            remedy="keep tcp in UCX_TLS for control messages, and a device that is up in UCX_NET_DEVICES",
        )

    def read_log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def _inherited() -> dict[str, str]:
    """This process's environment without what would decide for UCX or NIXL behind the plan."""
    deciding = keep_deciding(os.environ)
    return {key: value for key, value in os.environ.items() if key not in deciding and not key.startswith(COUNTERS)}


def _choose_user(spec: NodeSpec) -> str | None:
    """Return the service user when root asks on a node of GPUs that has it: what root may, a service may not."""
    if os.geteuid() != 0 or spec.engine.device == "cpu":
        return None
    return spec.node.user if spec.node.user in read_host().users else None


def _summarise(timing: Timing) -> Step:
    median, best = statistics.median(timing.rounds_s), min(timing.rounds_s)
    return Step(
        name=timing.name,
        bytes=timing.bytes,
        blocks=timing.blocks,
        median_gb_s=round(timing.bytes / median / 1e9, 3),
        best_gb_s=round(timing.bytes / best / 1e9, 3),
        median_ms=round(median * 1e3, 3),
        first_ms=round(timing.first_s * 1e3, 3),
    )


def _find_error(log: str) -> str:
    """Return the line of a log that says most: NIXL's error, UCX's, or the last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "NIXL_ERR" in line or "ERROR" in line]
    return (telling or lines or ["it printed nothing"])[-1][-200:]
