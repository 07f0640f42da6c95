"""Every op's kernel against its reference, under the interpreter, on its correctness and corner cases."""

import pytest
import torch

from dsv41_kernels import check, registry
from dsv41_kernels.op import Op, Problem, copy_inputs
from dsv41_kernels.ops.pack.kernel import Pools

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


@pytest.mark.parametrize("op", registry.load_all(), ids=lambda op: op.name)
def test_a_kernel_held_to_its_memory_serves_inputs_that_are_copied_there(op: Op):
    """What the test of captured graphs does on a GPU: nothing is left of the first inputs, and no address is another."""
    problem = op.select("correctness")[-1]
    first, second = (op.make_inputs(problem, torch.device("cpu"), seed) for seed in (1, 2))
    expected = op.reference(**op.make_inputs(problem, torch.device("cpu"), 2))
    tables = {name: value.table.clone() for name, value in first.items() if isinstance(value, Pools)}
    copy_inputs(first, second)
    found = op.kernel(**first)
    assert not (op.compare(found, expected) if op.compare else check.faults(found, expected, op.tolerances))
    for name, table in tables.items():
        assert torch.equal(first[name].table, table)
        assert not torch.equal(second[name].table, table)


def test_an_input_that_cannot_be_copied_is_named():
    with pytest.raises(ValueError, match="input ratio is 4 and cannot be made 8 in place"):
        copy_inputs({"ratio": 4, "start": None}, {"ratio": 8, "start": None})
