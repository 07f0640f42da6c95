"""Index scores on the hardware: the packed PTX path decodes exactly; decode, verify and prefill agree on one request."""

import pytest
import torch

from dsv41_kernels import layout
from dsv41_kernels.ops.index_scores import kernel, problem, reference, scene

GPU = torch.device("cuda")


@pytest.mark.parametrize("byte", [66, 114, 127, 140, 192])
def test_keys_are_decoded_exactly_on_gpu(byte: int):
    """Every pair of codes times a scale from either end of the documented range, read back channel by channel."""
    keys = torch.full((1, 4352), byte, dtype=torch.uint8, device=GPU)
    keys[0, :4096] = (torch.arange(4096, device=GPU) * 37) % 256
    query = torch.zeros(128, 16, 128, dtype=torch.bfloat16, device=GPU)
    channel = torch.arange(128, device=GPU)
    query[channel, 0, channel] = 1
    query[channel, 1, channel] = -1
    weight = torch.zeros(128, 16, dtype=torch.bfloat16, device=GPU)
    weight[:, 0], weight[:, 1] = 1, -1  # relu(k) - relu(-k) = k
    table = torch.arange(64, dtype=torch.int32, device=GPU)[None, :]
    length = torch.full((128,), 64, dtype=torch.int32, device=GPU)
    request = torch.zeros(128, dtype=torch.int64, device=GPU)
    scores = kernel.index_scores(query, weight, request, table, length, keys, ratio=1, max_length=64)["scores"]
    assert torch.equal(scores.T, layout.read(layout.INDEX_KEY, keys, 64, torch.arange(64, device=GPU)))


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("group_rows", sorted(kernel.CONFIGS))
def test_every_grouping_on_gpu(group_rows: int, ratio: int):
    """Groups of every supported size, ragged and regular, against the reference."""
    rows = [24, 24]
    lengths = [scene.consecutive_lengths(newest, 24, ratio) for newest in (3000, 777)]
    inputs = scene.make_scene(lengths, ratio=ratio, heads=32, max_length=4096, device=GPU, seed=group_rows)
    expected = reference.index_scores(**inputs, ratio=ratio, max_length=4096)
    for starts in (None, kernel.split_rows(rows, group_rows, GPU)):
        outputs = kernel.index_scores(**inputs, ratio=ratio, max_length=4096, group_rows=group_rows, starts=starts)
        assert problem.compare(outputs, expected) == []


def test_more_ragged_groups_than_one_launch_serves_on_gpu():
    """1300 rows of three requests in groups of eight: two launches."""
    rows = [700, 599, 1]
    lengths = [scene.consecutive_lengths(newest, count, 1) for newest, count in zip((900, 600, 5), rows, strict=True)]
    inputs = scene.make_scene(lengths, ratio=1, heads=32, max_length=1024, device=GPU, seed=2)
    starts = kernel.split_rows(rows, 8, GPU)
    assert len(starts) - 1 > kernel.RAGGED_GROUPS[-1]
    outputs = kernel.index_scores(**inputs, ratio=1, max_length=1024, group_rows=8, starts=starts)
    assert problem.compare(outputs, reference.index_scores(**inputs, ratio=1, max_length=1024)) == []
