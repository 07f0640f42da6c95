"""Every op compiles offline for every architecture and stays within its limits (compiled, not run)."""

import os
import subprocess
import sys

import pytest

from dsv41_kernels import compile as offline
from dsv41_kernels import registry
from dsv41_kernels.op import CompileCase
from dsv41_kernels.ops.candidate_scores import kernel as candidate_scores
from dsv41_kernels.ops.index_scores import kernel as index_scores


@pytest.mark.parametrize("name", registry.names())
def test_compiles_within_the_limits_of_every_architecture(name: str):
    """sm_90, sm_100, sm_103 and sm_120: shared memory, registers and stack. A process of its own, as Triton interprets here."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "dsv41_kernels.compile", name],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    for target in offline.SHARED_LIMIT:
        assert f"sm_{target}" in result.stdout


def test_limits_are_those_of_the_architectures():
    """sm_120 has 99 KB of shared memory for a block, the others 227 KB."""
    assert offline.SHARED_LIMIT == {90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}


def test_an_excess_is_named():
    """Shared memory above the architecture's limit is reported with case, architecture and both numbers."""
    case = registry.load("sparse_decode").compile_cases[0]
    compiled = offline.Compiled(case.name, 120, 101_377, 80, 0, 4)
    assert compiled.excesses(case)[0] == f"{case.name} on sm_120: shared memory 101377 exceeds 101376"


def find(op: str, case: str) -> CompileCase:
    return next(each for each in registry.load(op).compile_cases if each.name == case)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "target", "programs"),
    [
        (168, 0, 4, 90, 3),  # 168 * 128 * 3 = 64,512 of 65,536
        (169, 0, 4, 90, 2),  # a warp's registers come in units of 256: 176 a thread
        (255, 0, 4, 90, 2),
        (32, 59_392, 4, 90, 3),  # 3 * (59,392 + 1,024) of 233,472
        (32, 59_392, 4, 120, 1),
        (32, 50_176, 4, 120, 2),  # to the byte
        (32, 0, 4, 90, 16),
        (32, 0, 4, 120, 12),  # 48 warps
    ],
)
def test_programs_of_a_multiprocessor(registers: int, shared: int, warps: int, target: int, programs: int):
    """By registers, shared memory and warps, whichever is least."""
    assert offline.Compiled("case", target, shared, registers, 0, warps).programs == programs


def test_a_launch_that_gets_fewer_programs_than_it_counts_on_is_named():
    """A persistent scan with three programs on each multiprocessor: one register too many leaves two, half as slow again."""
    case = find("index_scores", "decode 1")
    assert not offline.Compiled(case.name, 90, 26_112, 168, 0, 4).excesses(case)
    assert offline.Compiled(case.name, 90, 26_112, 169, 0, 4).excesses(case) == [
        "decode 1 on sm_90: 169 registers and 26112 B of shared memory leave a multiprocessor 2 programs, the launch counts on 3"
    ]


def test_stack_is_allowed_by_architecture():
    """Sparse decode may spill 48 B where it was never measured, nothing on sm_90."""
    case = find("sparse_decode", "v4-16-heads")
    assert not offline.Compiled(case.name, 100, 59_392, 255, 48, 4).excesses(case)
    assert offline.Compiled(case.name, 90, 59_392, 255, 8, 4).excesses(case) == [
        "v4-16-heads on sm_90: stack 8 exceeds 0"
    ]


def test_programs_counted_on_are_those_of_the_launch():
    """What the offline cases hold is what the launchers ask for."""
    for case in registry.load("index_scores").compile_cases:
        config = index_scores.CONFIGS[case.constants["GROUP_ROWS"]]
        assert (case.programs, case.options["num_warps"]) == (config.programs, config.warps)
    assert find("candidate_scores", "2048 blocks").programs == candidate_scores.CONFIG.programs
