"""Index scores: exactness of the decoded keys, independence of the capacity, grouping of rows, refusals."""

import pytest
import torch

from dsv41_kernels import codec, layout
from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.index_scores import kernel, problem, reference, scene

CPU = torch.device("cpu")


def small_scene(lengths: list[list[int]], max_length: int, *, ratio: int = 1, seed: int = 0) -> dict:
    """Inputs of a small case without the grouping arguments."""
    return scene.make_scene(lengths, ratio=ratio, heads=16, max_length=max_length, device=CPU, seed=seed)


@pytest.mark.parametrize("byte", [66, 114, 127, 140, 192])
def test_keys_are_decoded_exactly(byte: int):
    """Every code times a scale from either end of the documented range, read back channel by channel: no bit is lost."""
    keys = torch.full((1, 4352), byte, dtype=torch.uint8)
    keys[0, :4096] = torch.arange(4096) % 251  # every pair of codes, at different channels of different slots
    query = torch.zeros(128, 16, 128, dtype=torch.bfloat16)
    channel = torch.arange(128)
    query[channel, 0, channel] = 1
    query[channel, 1, channel] = -1
    weight = torch.zeros(128, 16, dtype=torch.bfloat16)
    weight[:, 0], weight[:, 1] = 1, -1  # relu(k) - relu(-k) = k
    table = torch.arange(64, dtype=torch.int32)[None, :]
    length = torch.full((128,), 64, dtype=torch.int32)
    scores = kernel.index_scores(
        query, weight, torch.zeros(128, dtype=torch.int64), table, length, keys, ratio=1, max_length=64
    )["scores"]
    expected = layout.read(layout.INDEX_KEY, keys, 64, torch.arange(64))
    assert torch.equal(scores.T, expected)


def test_every_program_count_gives_the_same_scores():
    """The work is divided among the programs of the grid; how many there are changes nothing."""
    inputs = small_scene([[300], [64], [0], [129]], 320)
    expected = reference.index_scores(**inputs, ratio=1, max_length=320)
    for programs in (1, 2, 5, 40):
        config = kernel.Config((1, 0), 64, 4, 3, programs)
        outputs = kernel.index_scores(**inputs, ratio=1, max_length=320, config=config)
        assert problem.compare(outputs, expected) == []


def test_grid_does_not_depend_on_the_capacity(monkeypatch: pytest.MonkeyPatch):
    """A larger maximum context starts the same programs: with the same lengths they do the same work."""
    grids = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]):
            grids.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(kernel, "index_scores_kernel", Recorder())
    for capacity in (64, 8192, 1 << 20):
        kernel.index_scores(**small_scene([[40]], capacity), ratio=1, max_length=capacity)
    assert len(set(grids)) == 1


def test_nothing_is_written_beyond_the_length():
    """What lies beyond a row's length keeps its bytes, also within the last tile and the last block."""
    inputs = small_scene([[70], [9]], 128)
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(7.0))
        outputs = kernel.index_scores(**inputs, ratio=1, max_length=128)
    assert (outputs["scores"][0, 70:] == 7).all()
    assert (outputs["scores"][1, 9:] == 7).all()
    assert (outputs["maxima"][0, 9:] == 7).all()
    assert (outputs["maxima"][1, 2:] == 7).all()


def test_split_rows_keeps_requests_apart():
    """Groups of at most four rows, none across two requests; a request without rows has no group."""
    starts = kernel.split_rows([5, 0, 4, 1], 4, CPU)
    assert starts.tolist() == [0, 4, 5, 9, 10]


def test_more_ragged_groups_than_one_launch_serves(monkeypatch: pytest.MonkeyPatch):
    """The groups are served by several launches with the same result."""
    monkeypatch.setattr(kernel, "RAGGED_GROUPS", (2,))
    lengths = [scene.consecutive_lengths(90, 7, 1), scene.consecutive_lengths(11, 2, 1)]
    inputs = small_scene(lengths, 128)
    starts = kernel.split_rows([7, 2], 2, CPU)
    outputs = kernel.index_scores(**inputs, ratio=1, max_length=128, group_rows=2, starts=starts)
    assert problem.compare(outputs, reference.index_scores(**inputs, ratio=1, max_length=128)) == []


def test_rounded_queries_and_stored_keys_meet():
    """With keys written by the codec's own writer the score is the float64 product of the rounded vectors."""
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn(64, 128, generator=generator)
    keys = layout.empty_cache(layout.INDEX_KEY, 1, 64)
    layout.write(layout.INDEX_KEY, keys, 64, torch.arange(64), latent)
    query = codec.round_fp4_index(torch.randn(1, 32, 128, generator=generator)).to(torch.bfloat16)
    weight = torch.rand(1, 32, generator=generator)
    scores = kernel.index_scores(
        query,
        weight,
        torch.zeros(1, dtype=torch.int64),
        torch.arange(64, dtype=torch.int32)[None, :],
        torch.tensor([64], dtype=torch.int32),
        keys,
        ratio=1,
        max_length=64,
    )["scores"]
    code, scale = codec.quantise_fp4_index(latent)
    stored = codec.decode_e2m1(code) * codec.spread(codec.decode_ue8m0(scale), 32)
    expected = (query.double() @ stored.double().T).relu().mul(weight.double()[:, :, None]).sum(dim=1)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_rows": 3}, "group_rows 3 is not one of"),
        ({"group_rows": 6}, "2 rows are no multiple of group_rows 6"),
        ({"ratio": 4}, "table is too narrow"),
        ({"max_length": 10_000}, "table is too narrow"),
        ({"length": torch.tensor([1, 2])}, "length is not contiguous int32"),
    ],
)
def test_refusals(change: dict, message: str):
    """A launcher says what is wrong instead of reading past a buffer."""
    inputs = {**small_scene([[40], [9]], 64), "ratio": 1, "max_length": 64, **change}
    with pytest.raises(UnsupportedProblemError, match=message):
        kernel.index_scores(**inputs)
