"""Every op's kernel against its reference, under the interpreter, on its correctness and corner cases."""

import pytest

from dsv41_kernels import check, registry
from dsv41_kernels.op import Op, Problem

CASES = [
    pytest.param(op, problem, id=f"{op.name}-{problem.name}")
    for op in registry.load_all()
    for problem in op.select("correctness", "corner")
]


@pytest.mark.parametrize(("op", "problem"), CASES)
def test_kernel_equals_reference(op: Op, problem: Problem):
    """The gate is green on two sets of fresh random inputs."""
    for seed in (42, 43):
        assert not check.check(op, problem, "cpu", seed).faults


@pytest.mark.parametrize("op", registry.load_all(), ids=lambda op: op.name)
def test_op_is_complete(op: Op):
    """An op has all classes of cases, unique names and a cost for every production case."""
    names = [problem.name for problem in op.problems]
    assert len(set(names)) == len(names)
    for kind in ("correctness", "corner", "production"):
        assert op.select(kind), kind
    for problem in op.select("production"):
        assert op.cost(problem).bytes > 0
        assert op.supports((9, 0), problem) is None
    assert op.compile_cases
    assert op.replaces
