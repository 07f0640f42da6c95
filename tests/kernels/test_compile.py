"""Every op compiles offline for every architecture and stays within its limits (compiled, not run)."""

import os
import subprocess
import sys

import pytest

from dsv41_kernels import compile as offline
from dsv41_kernels import registry


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
    compiled = offline.Compiled(case.name, 120, 101_377, 255, 0)
    assert compiled.excesses(case) == [f"{case.name} on sm_120: shared memory 101377 exceeds 101376"]
