"""Real NIXL agents in two processes on this machine: lanes told apart, bytes compared, refusals in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from dsv41_serving.cli import cli
from dsv41_serving.errors import GateError
from dsv41_serving.transport.collective import try_collective
from dsv41_serving.transport.jobs import MIB, Job
from dsv41_serving.transport.lanes import choose_lane, find_lanes
from dsv41_serving.transport.proof import read_proof
from dsv41_serving.transport.prove import run_pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine
pytest.importorskip("nixl", reason="NIXL is not installed: make env")

JOBS = (Job("one", (4 * MIB,)), Job("pages", (37_376,) * 64), Job("two at once", (MIB,), at_once=2))
LO = {"UCX_NET_DEVICES": "lo"}


@pytest.mark.parametrize(("tls", "lane"), [("cma,tcp", "shm"), ("tcp", "tcp")])
def test_lanes_are_told_apart_and_every_byte_arrives(tls: str, lane: str) -> None:
    run = run_pair(JOBS, {**LO, "UCX_TLS": tls}, {**LO, "UCX_TLS": tls}, gpus=None)
    assert choose_lane(find_lanes(run.log)) == lane
    assert run.matched
    assert [(timing.name, timing.bytes, timing.blocks) for timing in run.timings] == [
        ("one", 4 * MIB, 1),
        ("pages", 37_376 * 64, 64),
        ("two at once", 2 * MIB, 2),
    ]
    assert all(len(timing.rounds_s) == 6 and min(timing.rounds_s) > 0 for timing in run.timings)


def test_without_tcp_nothing_moves_and_the_remedy_says_so() -> None:
    """NIXL needs a lane that notices a dead peer, which the shared-memory lanes do not."""
    with pytest.raises(GateError, match=r"transport: the \w+ ended: .*NIXL_ERR_BACKEND; keep tcp in UCX_TLS"):
        run_pair(JOBS, {**LO, "UCX_TLS": "sm,self"}, {**LO, "UCX_TLS": "sm,self"}, gpus=None)


def prove(tmp_path: Path, *options: str) -> Result:
    places = [f"--set=node.state_dir={tmp_path}", *(f"--set={option}" for option in options)]
    return CliRunner().invoke(cli, ["--profile", "embedded", *places, "transport", "prove", "--json"])


def test_the_verb_keeps_the_baseline(tmp_path: Path) -> None:
    """Of this machine's own engines' environments; preflight and the exporter read it."""
    done = prove(tmp_path)
    proof = read_proof(str(tmp_path))
    assert proof is not None
    assert json.loads(done.stdout)["best_gb_s"] == proof.best_gb_s > 0
    assert proof.pairs[0].steps[-1].blocks == 60
    assert proof.pairs[0].matched
    assert (done.exit_code == 0) == (proof.reason == "")


def test_a_lane_that_is_forced_to_sockets_is_called_slow(tmp_path: Path) -> None:
    done = prove(tmp_path, "engine.env.UCX_TLS=tcp")
    proof = read_proof(str(tmp_path))
    assert proof is not None
    assert (done.exit_code, proof.lane) == (1, "tcp")
    assert proof.reason == "UCX_TLS = tcp names no lane inside the host: data goes through sockets"


def test_two_processes_sum_a_buffer_and_every_element_is_compared() -> None:
    """What NCCL does between the GPUs of an engine, over gloo."""
    found = try_collective("prefill", (0, 1), {}, ranks=2, backend="gloo", elements=1 << 20)
    assert found.problem == ""
    assert found.bus_gb_s > 0
