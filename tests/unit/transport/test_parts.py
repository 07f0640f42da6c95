"""What is moved, which lane it took, and why it was slow: the parts that need no transfer."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.capacity import read_shape
from dsv41_serving.capacity.engine import read_settings
from dsv41_serving.capacity.pools import hand_off_bytes
from dsv41_serving.errors import InputError
from dsv41_serving.facts import Facts, read_facts
from dsv41_serving.facts.copying import Copying
from dsv41_serving.facts.host import Host, read_host
from dsv41_serving.spec import load_spec
from dsv41_serving.transport.jobs import MIB, Job, list_jobs, list_prompt_blocks, shorten
from dsv41_serving.transport.judge import judge_pair
from dsv41_serving.transport.lanes import choose_lane, find_lanes, find_write_lanes, is_slower
from dsv41_serving.transport.proof import Pair, Proof, Step, find_peers, read_proof, store_proof
from dsv41_serving.transport.report import list_problems
from dsv41_serving.transport.side import list_written, place_blocks, span
from tests.fixtures.machines.build import build_machine
from tests.unit.capacity.test_estimate import SMOLLM2
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from pathlib import Path

FLASH = read_shape(None, "deepseek-v4.1-flash")
COPIES = Copying(pidfd_getfd="ok", process_vm_readv="ok")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return read_facts(build_machine("two-socket-8gpu", tmp_path_factory.mktemp("machines")))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return read_host(tmp_path_factory.mktemp("host"))


# --- lanes ----------------------------------------------------------------------------------------------------------

CMA = "[1] parser.c UCX INFO x\n[2] ucp_context.c:2190 UCX  INFO    initiator self cfg#1 intra-node am(tcp/lo cma/memory)\n"
SPREAD = (
    "[2] ucp_worker.c:1997 UCX  INFO    initiator intra-node cfg#1 rma_am(tcp/lo)  am(tcp/lo cma/memory)  ka(tcp/lo)\n"
)
TCP = "[2] ucp_worker.c:1915 UCX  INFO    target: cfg#2 inter-node am(tcp/lo)\n"
CUDA = "[2] ucp_worker.c UCX  INFO  cfg#3 am(tcp/lo) rma(cuda_ipc/cuda cuda_copy/cuda) stream(tcp/lo)\n"
RDMA = "[2] ucp_worker.c UCX  INFO  cfg#3 am(rc_mlx5/mlx5_0:1) rma(rc_mlx5/mlx5_0:1 cuda_copy/cuda)\n"


@pytest.mark.parametrize(
    ("log", "lanes", "kind"),
    [
        (CMA, ("tcp", "cma"), "shm"),
        (TCP, ("tcp",), "tcp"),
        (CUDA, ("tcp", "cuda_ipc", "cuda_copy"), "cuda_ipc"),
        (RDMA, ("rc_mlx5", "cuda_copy"), "rdma"),
        (SPREAD, ("tcp", "cma"), "shm"),
        ("nothing of the kind\n", (), "unknown"),
        (TCP + CMA, ("tcp", "cma"), "shm"),
    ],
)
def test_the_fastest_lane_named_carries_the_data(log: str, lanes: tuple[str, ...], kind: str) -> None:
    """A tcp in the line is there for control messages whatever carries the data."""
    assert find_lanes(log) == lanes
    assert choose_lane(lanes) == kind


TABLES = """
[1] [vm:1:0]   +--------+-------------+-----------------------------------+
[1] [vm:1:0]   | initiator self cfg#0                                     |
[1] [vm:1:0]   | remote memory write by ucp_put* from host memory to host |
[1] [vm:1:0]   | Range  | Description |              Config               |
[1] [vm:1:0]   | 0..inf | zero-copy   | cma/memory                        |
[1] [vm:1:0]   | initiator intra-node cfg#1                               |
[1] [vm:1:0]   | active message by ucp_am_send* from host memory          |
[1] [vm:1:0]   | 16516..inf | multi-frag copy-in | sysv/memory             |
[1] [vm:1:0]   | initiator intra-node cfg#1                               |
[1] [vm:1:0]   | remote memory write by ucp_put* from host memory to host |
[1] [vm:1:0]   |     0..2047 | short     | sysv/memory                    |
[1] [vm:1:0]   |   2048..inf | zero-copy | tcp/lo                         |
"""
ON_GPUS = (
    TABLES
    + """
[1] [vm:1:0]   | 0123-prefill intra-node cfg#2                                              |
[1] [vm:1:0]   | remote memory write by ucp_put*(multi) from cuda/GPU0 to cuda/GPU1         |
[1] [vm:1:0]   | 0..inf | zero-copy | 50% on rc_mlx5/mlx5_0:1/path0 and 50% on rc_mlx5/mlx5_1:1 |
"""
)


def test_what_carries_large_writes_to_the_peer_is_read_from_ucxs_tables() -> None:
    """Not those to itself, not messages, not small writes; and device memory tells more than host memory."""
    assert find_write_lanes(TABLES) == ("tcp",)
    assert choose_lane(find_write_lanes(ON_GPUS)) == "rdma"
    assert find_write_lanes(CMA) == ()


def test_only_a_slower_kind_is_slower() -> None:
    assert [is_slower(lane, "shm") for lane in ("cuda_ipc", "rdma", "shm", "tcp", "unknown")] == [False] * 3 + [
        True,
        False,
    ]
    assert not is_slower("tcp", "unknown")


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_a_prompt_lies_in_pages_of_every_pool() -> None:
    """V4.1, 4,096 tokens: 16 pages of four sources, their index keys, and a window page of each of 40 layers."""
    decode = read_settings(load_spec(profile="h200x8").spec, "decode")
    blocks = list_prompt_blocks(FLASH, decode, 4096)
    assert len(blocks) == 16 * 4 * 2 + 40
    assert sorted(set(blocks)) == [128 * 68, 256 * 68, 128 * 585, 256 * 585]
    rings = 3 * 2 * 2 * 512 * 4
    assert sum(blocks) == hand_off_bytes(FLASH, decode, 4096) - rings


def test_a_prompt_of_the_toy_model_is_two_runs_a_layer() -> None:
    decode = read_settings(load_spec(profile="embedded").spec, "decode")
    assert list_prompt_blocks(SMOLLM2, decode, 4096) == (4096 * 384,) * 60


def test_jobs_climb_a_ladder_and_end_with_a_prompt() -> None:
    decode = replace(read_settings(load_spec(profile="embedded").spec, "decode"), context=1000)
    jobs = list_jobs(SMOLLM2, decode, on_gpu=False)
    assert [job.name for job in jobs] == [
        "1 x 1 MiB",
        "1 x 16 MiB",
        "1 x 64 MiB",
        "4 x 16 MiB at once",
        "prompt of 1000 tokens",
    ]
    assert jobs[3].bytes == 64 * MIB
    assert "1 x 512 MiB" in [job.name for job in list_jobs(SMOLLM2, decode, on_gpu=True)]


def test_a_start_waits_for_one_bulk_write_and_the_prompt() -> None:
    decode = read_settings(load_spec(profile="embedded").spec, "decode")
    names = [job.name for job in shorten(list_jobs(SMOLLM2, decode, on_gpu=True))]
    assert names == ["1 x 16 MiB", "prompt of 4096 tokens"]


def test_blocks_never_touch() -> None:
    """Neighbours would be joined into one descriptor, and the cost of many would not show."""
    job = Job("j", (100, 200), at_once=2)
    placed = place_blocks(job)
    flat = sorted(block for blocks in placed for block in blocks)
    assert [size for _, size in flat] == [100, 200, 100, 200]
    assert all(first + size < second for (first, size), (second, _) in itertools.pairwise(flat))
    assert flat[-1][0] + flat[-1][1] <= span(job)


def test_what_is_compared_is_what_was_written() -> None:
    """Once, though jobs overlap; not the gaps."""
    assert list_written([Job("a", (100,)), Job("b", (50, 50))]) == [(0, 100), (306, 356)]
    assert list_written([Job("b", (50, 50)), Job("c", (1000,))]) == [(0, 1000)]


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_a_copy_inside_the_host_is_as_fast_as_it_gets(facts: Facts, host: Host) -> None:
    verdict = judge_pair("shm", 5.0, gpus=None, env={}, facts=facts, host=host, copying=COPIES)
    assert (verdict.reason, verdict.remedy) == ("", "")


@pytest.mark.parametrize(
    ("env", "copying", "first_namespace", "said", "remedy"),
    [
        ({"UCX_TLS": "tcp,self"}, COPIES, True, "UCX_TLS = tcp,self names no lane inside the host", "add cma"),
        (
            {},
            Copying(pidfd_getfd="ok", process_vm_readv="Operation not permitted"),
            True,
            "the kernel refuses copies between processes (process_vm_readv: Operation not permitted)",
            "ptrace_scope=0",
        ),
        ({}, COPIES, False, "a PID namespace of its own hides the peer", "--pid=host"),
        ({"UCX_TLS": "cma,tcp"}, COPIES, True, "nothing says why", "UCX_LOG_LEVEL=debug"),
    ],
)
def test_sockets_inside_one_host_have_a_reason(  # noqa: PLR0917 - fixtures and cases
    facts: Facts, host: Host, env: dict[str, str], copying: Copying, said: str, remedy: str, *, first_namespace: bool
) -> None:
    there = host.model_copy(update={"first_pid_namespace": first_namespace})
    verdict = judge_pair("tcp", 1.0, gpus=None, env=env, facts=facts, host=there, copying=copying)
    assert said in verdict.reason
    assert remedy in verdict.remedy


@pytest.mark.parametrize(("lane", "speed"), [("cuda_ipc", 220.0), ("rdma", 40.0)])
def test_a_fast_pair_of_gpus_passes(facts: Facts, host: Host, lane: str, speed: float) -> None:
    verdict = judge_pair(lane, speed, gpus=(0, 4), env={}, facts=facts, host=host, copying=COPIES)
    assert verdict.reason == ""


@pytest.mark.parametrize(
    ("lane", "speed", "env", "copying", "said"),
    [
        ("tcp", 0.4, {"UCX_TLS": "cuda_copy,tcp,self"}, COPIES, "UCX_TLS = cuda_copy,tcp,self lacks cuda_ipc"),
        (
            "cuda_ipc",
            0.3,
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            COPIES,
            "expandable segments cannot be shared",
        ),
        (
            "tcp",
            0.4,
            {},
            Copying(pidfd_getfd="killed by SIGSYS", process_vm_readv="ok"),
            "refuses copies between processes (pidfd_getfd: killed by SIGSYS)",
        ),
        ("tcp", 0.4, {}, COPIES, "UCX chose tcp though the GPUs have NVLink"),
        ("cuda_ipc", 5.0, {}, COPIES, "5.0 GB/s over NVLink"),
    ],
)
def test_a_slow_pair_of_gpus_has_a_reason(  # noqa: PLR0917 - fixtures and cases
    facts: Facts, host: Host, lane: str, speed: float, env: dict[str, str], copying: Copying, said: str
) -> None:
    verdict = judge_pair(lane, speed, gpus=(0, 4), env=env, facts=facts, host=host, copying=copying)
    assert said in verdict.reason
    assert verdict.remedy


def test_without_nvlink_the_link_itself_is_the_reason(facts: Facts, host: Host) -> None:
    apart = facts.model_copy(update={"gpus": tuple(gpu.model_copy(update={"links": ()}) for gpu in facts.gpus)})
    slow = judge_pair("tcp", 0.4, gpus=(0, 4), env={}, facts=apart, host=host, copying=COPIES)
    assert slow.reason == "no NVLink between the two GPUs, and tcp gave 0.40 GB/s"
    assert judge_pair("cuda_ipc", 20.0, gpus=(0, 4), env={}, facts=apart, host=host, copying=COPIES).reason == ""


# --- the result that is kept ----------------------------------------------------------------------------------------


def make_pair(**changes: object) -> Pair:
    def step(name: str, size: int, speed: float) -> Step:
        return Step(name=name, bytes=size, blocks=1, median_gb_s=speed, best_gb_s=speed, median_ms=1.0, first_ms=2.0)

    values: dict[str, object] = {
        "prefill": "prefill:0",
        "decode": "decode:0",
        "gpus": None,
        "lane": "shm",
        "lanes": ("tcp", "cma"),
        "steps": (step("1 x 1 MiB", MIB, 30.0), step("1 x 64 MiB", 64 * MIB, 8.0)),
        "matched": True,
        "reason": "",
        "remedy": "",
    }
    return Pair.model_validate({**values, **changes})


def make_proof(*pairs: Pair) -> Proof:
    return Proof(
        date="2026-11-29",
        node="n",
        user="dsv41",
        kernel_release="6.8",
        driver_version=None,
        backend="UCX",
        lane="shm",
        best_gb_s=8.0,
        prompt_ms=3.0,
        reason="",
        remedy="",
        pairs=pairs,
        provenance={"command": "dsv41 transport prove"},
    )


def test_the_baseline_is_a_bulk_write() -> None:
    """One that fits into a processor's cache says nothing of the link."""
    assert make_pair().best_gb_s == 8.0


def test_what_a_hand_off_can_reach_is_the_slowest_pairs_prompt() -> None:
    """In the blocks of the pools, which no large write resembles."""
    decode = read_settings(load_spec(profile="embedded").spec, "decode")

    def prompt(speed: float) -> Step:
        return Step(
            name=list_jobs(SMOLLM2, decode, on_gpu=False)[-1].name,
            bytes=1,
            blocks=60,
            median_gb_s=speed,
            best_gb_s=99.0,
            median_ms=1.0,
            first_ms=1.0,
        )

    proof = make_proof(make_pair(steps=(prompt(3.0),)), make_pair(steps=(prompt(2.5),)))
    assert proof.prompt_gb_s == 2.5
    assert make_proof(make_pair()).prompt_gb_s == 8.0


def test_a_proof_is_kept_and_read_again(tmp_path: Path) -> None:
    proof = make_proof(make_pair())
    path = store_proof(proof, str(tmp_path))
    assert path == tmp_path / "transport/proof.json"
    assert read_proof(str(tmp_path)) == proof
    path.write_text("{}")
    assert read_proof(str(tmp_path)) is None
    assert read_proof(str(tmp_path / "absent")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away; enable with: sudo make test-unit")
def test_what_root_proves_belongs_to_the_owner_of_the_state_directory(tmp_path: Path) -> None:
    """Else the service could not renew it after the next kernel."""
    os.chown(tmp_path, 12345, 12345)
    path = store_proof(make_proof(make_pair()), str(tmp_path))
    assert {each.stat().st_uid for each in (path, path.parent)} == {12345}


def test_a_state_directory_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "transport").write_text("a file in the way")
    with pytest.raises(InputError, match=r"key node\.state_dir: cannot be written"):
        store_proof(make_proof(), str(tmp_path))


def test_wrong_bytes_and_slow_pairs_are_not_good() -> None:
    assert make_proof(make_pair()).good
    wrong, slow = make_pair(matched=False), make_pair(reason="sockets", remedy="add cma")
    assert not make_proof(make_pair(), wrong).good
    assert not make_proof(slow).good
    assert list_problems(wrong) == ["the bytes that arrived are not those that were sent: do not serve on this lane"]
    assert list_problems(slow) == ["slow: sockets; mend: add cma"]
    assert list_problems(make_pair()) == []


def test_every_rank_of_prefill_has_its_peer(facts: Facts) -> None:
    peers = find_peers(plan_for(facts, "h200x8"))
    assert peers == [("prefill", rank, rank, "decode", rank, 4 + rank) for rank in range(4)]
    assert find_peers(plan_for(facts, "embedded")) == [("prefill", 0, None, "decode", 0, None)]


def test_a_shape_without_a_pair_proves_nothing(facts: Facts) -> None:
    with pytest.raises(InputError, match="shape replicas hands nothing over"):
        find_peers(plan_for(facts, "h200x8", "shape=replicas"))
