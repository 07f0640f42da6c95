"""Candidates on the hardware: repeated launches of the merging kernel, and the consumer behind its source at V4.1's shapes."""

import pytest
import torch

from dsv41_kernels.ops.candidate_scores import kernel as consumer
from dsv41_kernels.ops.candidates import kernel, problem, reference
from dsv41_kernels.ops.index_scores import kernel as index_scores
from dsv41_kernels.ops.index_scores import scene

GPU = torch.device("cuda")


@pytest.mark.parametrize("levels", [0, 3, 1000])
def test_merge_is_the_same_every_time_on_gpu(levels: int):
    """Eight programs a row race for the last ticket; the selection is the reference's on each of twenty launches."""
    lengths = [1024 * 1024, 1024 * 1024 - 5, 300_000, 131_073]
    case = problem._problem("merge", "corner", lengths, levels=levels)
    inputs = problem.make_inputs(case, GPU, 1)
    expected = reference.candidates(**inputs)
    for _ in range(20):
        outputs = kernel.candidates(**inputs)
        for name in ("blocks", "slots", "positions"):
            assert torch.equal(outputs[name].cpu(), expected[name].cpu()), name
    assert not kernel._tickets(GPU).any()


@pytest.mark.parametrize("context", [4096, 32_768, 131_072])
def test_consumer_agrees_with_its_source_on_gpu(context: int):
    """Scored again within the 2048 published blocks by the same query, the selection is the source's own."""
    lengths = [scene.consecutive_lengths(context - 77 * i, 6, 1) for i in range(3)]
    inputs = scene.make_scene(lengths, ratio=1, heads=32, max_length=context, device=GPU, seed=4)
    full = index_scores.index_scores(**inputs, ratio=1, max_length=context, group_rows=6)
    rows = {name: inputs[name] for name in ("length", "request", "table")}
    source = kernel.candidates(full["scores"], full["maxima"], **rows, ratio=1, count=2048, topk=512)
    again = consumer.candidate_scores(**inputs, blocks=source["blocks"], ratio=1, topk=512)
    # The two kernels' scores differ by float32 rounding at most; no two scores at the threshold of these seeds lie that close.
    assert torch.equal(again["positions"], source["positions"])
    assert torch.equal(again["slots"], source["slots"])
