"""Per-request seeds in the sampler: the same draw for the same seed, the right distribution, nobody else disturbed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv41_serving.sglang_plugin.contract.seeds import draw, note_seeds, redraw_seeded, uniform

TOP_K_ALL = 1 << 30
SIMPLE = False
PROBS = torch.tensor([[0.1, 0.4, 0.0, 0.3, 0.2]])


def many(count: int, *, top_k: int = TOP_K_ALL, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    """Return the ids drawn with one seed at `count` positions of a sequence."""
    chosen = uniform(torch.full((count,), 7), torch.arange(count))
    limits = torch.full((count,), top_k), torch.full((count,), top_p), torch.full((count,), min_p)
    return draw(PROBS.repeat(count, 1), *limits, chosen).tolist()


def test_draws_follow_the_probabilities() -> None:
    """20,000 draws; three standard deviations are 0.011."""
    ids = many(20_000)
    shares = [ids.count(token) / len(ids) for token in range(5)]
    assert shares == pytest.approx(PROBS[0].tolist(), abs=0.011)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        # As SGLang cuts: the token that crosses the limit stays.
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.75}, {1, 3, 4}),
        ({"min_p": 0.6}, {1, 3}),
        ({"top_k": 3, "top_p": 0.95, "min_p": 0.3}, {1, 3, 4}),
        ({}, {0, 1, 3, 4}),
    ],
)
def test_limits_cut_what_they_cut_in_sglang(limits: dict[str, Any], kept: set[int]) -> None:
    """Compared with SGLang's own sampler, which draws each kept token within 300 tries with a probability of 1 - 1e-13."""
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

    assert set(many(300, **limits)) == kept
    row = {"top_k": TOP_K_ALL, "top_p": 1.0, "min_p": 0.0, **limits}
    torch.manual_seed(0)
    theirs = top_k_top_p_min_p_sampling_from_probs_torch(
        PROBS.repeat(300, 1),
        torch.full((300,), row["top_k"]),
        torch.full((300,), row["top_p"]),
        torch.full((300,), row["min_p"]),
        "min_p" in limits,
        None,
        torch.zeros(300),
    )
    assert set(theirs.tolist()) == kept


def test_the_edges_of_a_distribution_are_inside() -> None:
    last = draw(
        PROBS, *(torch.tensor([value]) for value in (TOP_K_ALL, 1.0, 0.0)), torch.tensor([1 - 2.0**-53]).double()
    )
    first = draw(PROBS, *(torch.tensor([value]) for value in (TOP_K_ALL, 1.0, 0.0)), torch.tensor([0.0]).double())
    assert (first.item(), last.item()) == (1, 0)


def test_the_generator_is_splitmix64() -> None:
    """Against the reference values of seed 1234567 (Vigna's splitmix64.c), the top 53 bits of each."""
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    numbers = uniform(torch.full((3,), 1234567), torch.arange(3))
    assert numbers.tolist() == [(value >> 11) * 2.0**-53 for value in reference]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_every_seed_gives_numbers_from_0_to_1(seed: int) -> None:
    numbers = uniform(torch.full((1000,), seed), torch.arange(1000))
    assert 0 <= numbers.min().item() < 0.01
    assert 0.99 < numbers.max().item() < 1
    assert numbers.unique().numel() == 1000


def test_only_rows_with_a_seed_are_drawn_again() -> None:
    """One forward pass over four requests, two of them with the same seed at the same place."""
    requests = [SimpleNamespace(sampling_params=SimpleNamespace(sampling_seed=seed)) for seed in (None, 5, None, 5)]
    info = SimpleNamespace(
        top_ks=torch.full((4,), TOP_K_ALL), top_ps=torch.ones(4), min_ps=torch.zeros(4), sampling_seed=None
    )
    note_seeds(None, SimpleNamespace(sampling_info=info, reqs=requests))
    probs, positions = torch.full((4, 1000), 1e-3), torch.tensor([3, 3, 3, 3])
    ids, capture = redraw_seeded(
        (torch.full((4,), -1, dtype=torch.int32), "capture"), None, probs, info, positions, SIMPLE
    )
    assert capture == "capture"
    assert ids.dtype == torch.int32
    assert ids[0] == ids[2] == -1
    assert ids[1] == ids[3] >= 0
    elsewhere, _ = redraw_seeded((ids.clone(), None), None, probs, info, positions + 1, SIMPLE)
    assert elsewhere[1] != ids[1]


@pytest.mark.parametrize("seed", [None, torch.tensor([42])], ids=["unseeded", "deterministic"])
def test_sglang_keeps_what_is_its_own(seed: torch.Tensor | None) -> None:
    """Batches without a seed, and those of deterministic inference, where SGLang used the seed itself."""
    params = SimpleNamespace(sampling_seed=None if seed is None else 42)
    info = SimpleNamespace(sampling_seed=seed)
    note_seeds(None, SimpleNamespace(sampling_info=info, reqs=[SimpleNamespace(sampling_params=params)]))
    assert redraw_seeded((torch.tensor([3]), None), None, PROBS, info, torch.tensor([0]), SIMPLE) is None


def test_a_pass_without_sampling_is_left_alone() -> None:
    note_seeds(None, None)
    note_seeds(None, SimpleNamespace(sampling_info=None, reqs=[]))
