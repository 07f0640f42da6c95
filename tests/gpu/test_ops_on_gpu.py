"""Every op on the GPU: the gate on all problems, and replay of a captured graph after its inputs have changed."""

import os

import pytest
import torch

from dsv41_kernels import check, registry
from dsv41_kernels.op import Op, Problem, copy_inputs

CASES = [
    pytest.param(op, problem, id=f"{op.name}-{problem.name}") for op in registry.load_all() for problem in op.problems
]


@pytest.mark.parametrize(("op", "problem"), CASES)
def test_kernel_equals_reference_on_gpu(op: Op, problem: Problem):
    """The gate is green on fresh random inputs."""
    reason = op.supports(torch.cuda.get_device_capability(), problem)
    if reason:
        pytest.skip(reason)
    assert not check.check(op, problem, "cuda", seed=int.from_bytes(os.urandom(4), "little")).faults


@pytest.mark.parametrize("op", registry.load_all(), ids=lambda op: op.name)
def test_captured_graph_serves_other_inputs(op: Op):
    """A graph captured with one set of inputs is right for another set copied into the same memory: nothing was baked in."""
    problem = op.select("production")[0]
    held = op.make_inputs(problem, torch.device("cuda"), 1)
    op.kernel(**held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = op.kernel(**held)
    expected = op.reference(**op.make_inputs(problem, torch.device("cuda"), 2))
    copy_inputs(held, op.make_inputs(problem, torch.device("cuda"), 2))
    graph.replay()
    torch.cuda.synchronize()
    found = op.compare(captured, expected) if op.compare else check.faults(captured, expected, op.tolerances)
    assert not found
