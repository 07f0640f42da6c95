"""Candidates: many chunks, ties, the proof that the blocks hold the selection, and the consumer behind its source."""

import pytest
import torch

from dsv41_kernels.op import UnsupportedProblemError
from dsv41_kernels.ops.candidate_scores import kernel as consumer
from dsv41_kernels.ops.candidates import kernel, problem, reference
from dsv41_kernels.ops.index_scores import kernel as index_scores
from dsv41_kernels.ops.index_scores import scene

CPU = torch.device("cpu")
NAMES = ("blocks", "slots", "positions")


def make_case(lengths: list[int], *, count: int, topk: int, levels: int = 0, seed: int = 0) -> dict:
    """Random scores with `levels` different values (0: all different)."""
    return problem.make_inputs(
        problem._problem("case", "corner", lengths, count=count, topk=topk, levels=levels), CPU, seed
    )


@pytest.mark.parametrize("chunk", [256, 512])
@pytest.mark.parametrize("levels", [0, 2, 40])
def test_selection_across_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int, levels: int):
    """A row whose maxima need several programs: the last to arrive merges; 1 to 8 chunks, partial ones too."""
    monkeypatch.setattr(kernel, "_CHUNK", chunk)
    inputs = make_case([10_000, 2048 + 8, 9_000, 1030, 5], count=128, topk=64, levels=levels)
    outputs = kernel.candidates(**inputs)
    expected = reference.candidates(**inputs)
    for name in NAMES:
        assert torch.equal(outputs[name], expected[name]), name
    assert not kernel._tickets(CPU).any()  # ready for the next launch


def test_equal_scores_go_to_the_lower_position():
    """With one value everywhere the selection is the first positions, and the blocks the first ones plus the newest."""
    inputs = make_case([4000], count=128, topk=64, levels=1)
    outputs = kernel.candidates(**inputs)
    assert outputs["positions"][0].tolist() == list(range(64))
    assert outputs["blocks"][0].tolist() == [*range(127), 499]


def test_newest_block_is_kept_whatever_its_scores():
    """Also when its maximum is the smallest of all, and when it is partial."""
    inputs = make_case([3003], count=128, topk=16)
    inputs["scores"][0, 3000:3003] = -1e30
    inputs["maxima"][0, 375] = -1e30
    assert kernel.candidates(**inputs)["blocks"][0, -1] == 375


def test_published_blocks_hold_the_layers_own_selection():
    """No selected position lies outside the blocks, for scores with many ties at the threshold."""
    for seed in range(20):
        inputs = make_case([3000], count=128, topk=64, levels=30, seed=seed)
        outputs = kernel.candidates(**inputs)
        assert torch.isin(outputs["positions"][0] // 8, outputs["blocks"][0]).all()
        assert torch.equal(outputs["positions"], reference.candidates(**inputs)["positions"])


def test_outputs_are_written_in_place():
    """Buffers of the caller, wider than what is selected: only the selected columns are touched."""
    inputs = make_case([500, 20], count=128, topk=32)
    slots = torch.full((2, 40), 7, dtype=torch.int32)
    outputs = kernel.candidates(**inputs, slots=slots)
    assert outputs["slots"].data_ptr() == slots.data_ptr()
    assert torch.equal(slots[:, :32], reference.candidates(**inputs)["slots"])
    assert (slots[:, 32:] == 7).all()


def test_consumer_agrees_with_its_source():
    """Scored again within the published blocks by the same query, the selection is the source's own."""
    lengths = [scene.consecutive_lengths(1500, 3, 1), scene.consecutive_lengths(90, 3, 1)]
    inputs = scene.make_scene(lengths, ratio=1, heads=16, max_length=1600, device=CPU, seed=1)
    full = index_scores.index_scores(**inputs, ratio=1, max_length=1600)
    rows = {name: inputs[name] for name in ("length", "request", "table")}
    source = kernel.candidates(full["scores"], full["maxima"], **rows, ratio=1, count=128, topk=64)
    again = consumer.candidate_scores(**inputs, blocks=source["blocks"], ratio=1, topk=64)
    assert torch.equal(again["positions"], source["positions"])
    assert torch.equal(again["slots"], source["slots"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 100}, "count 100 is not one of"),
        ({"topk": 48}, "topk 48 is not one of"),
        ({"length": torch.tensor([1, 2])}, "length is not contiguous int32"),
        ({"maxima": torch.zeros(2, 8 * 16384 + 1)}, "exceed 131072"),
    ],
)
def test_refusals(change: dict, message: str):
    """A launcher says what is wrong instead of reading past a buffer."""
    with pytest.raises(UnsupportedProblemError, match=message):
        kernel.candidates(**{**make_case([500, 20], count=128, topk=32), **change})
