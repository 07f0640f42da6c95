"""A request's `seed` in SGLang's sampler, beside requests that have none.

SGLang 0.5.23 looks at seeds only under `--enable-deterministic-inference`. That gives every request without a seed the same
one, does not work with the flashinfer sampler, and slows the attention kernels down. Here SGLang samples as always, and the
rows with a seed are then drawn again from the same probabilities: what `seed` promises is the same draw for the same
probabilities, and those still depend a little on what else is in the batch. Speculative decoding samples elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from dsv41_serving.sglang_plugin.drift import Patch

SEEDS = "dsv41_seeds"
"""Attribute of the sampling parameters of one forward pass: row and seed of every request that has a seed."""


def note_seeds(_worker: Any, batch: Any, *_args: object, **_kwargs: object) -> None:
    """Put the seeds of `batch` beside its sampling parameters; called before each forward pass."""
    info = getattr(batch, "sampling_info", None)
    if info is not None:
        seeds = [(row, request.sampling_params.sampling_seed) for row, request in enumerate(batch.reqs)]
        setattr(info, SEEDS, [(row, seed) for row, seed in seeds if seed is not None])


def redraw_seeded(
    result: tuple[torch.Tensor, Any],
    _sampler: Any,
    probs: torch.Tensor,
    sampling_info: Any,
    positions: torch.Tensor,
    _simple: bool,  # noqa: FBT001 - the target's signature
) -> tuple[torch.Tensor, Any] | None:
    """Replace the sampled ids [batch] of rows with a seed; called after SGLang sampled from `probs` [batch, vocabulary]."""
    seeded = getattr(sampling_info, SEEDS, None)
    if not seeded or sampling_info.sampling_seed is not None:
        return None
    ids, capture = result
    rows = torch.tensor([row for row, _ in seeded], device=probs.device)
    seeds = torch.tensor([seed for _, seed in seeded], device=probs.device)
    info = sampling_info
    chosen = uniform(seeds, positions[rows])
    ids[rows] = draw(probs[rows], info.top_ks[rows], info.top_ps[rows], info.min_ps[rows], chosen).to(ids.dtype)
    return ids, capture


def draw(
    probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """Return the ids [n] at the quantiles `chosen` [n], in [0, 1), of `probs` [n, vocabulary] cut to top k, top p and min p.

    The cuts are SGLang's own: rank below k, mass of all better ones at most p, at least min p of the best.
    """
    ordered, ids = probs.double().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    kept = rank < top_ks[:, None]
    kept &= ordered.cumsum(-1) - ordered <= top_ps[:, None]
    kept &= ordered >= ordered[:, :1] * min_ps[:, None]
    mass = (ordered * kept).cumsum(-1)
    place = (mass <= chosen[:, None] * mass[:, -1:]).sum(-1).minimum(kept.sum(-1) - 1)
    return ids.gather(1, place[:, None])[:, 0]


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return a number in [0, 1) for each pair of a seed and a position in the sequence, int64 [n] each.

    SplitMix64 (Steele, Lea, Flood 2014), with the position as the counter. int64 wraps as uint64 does.
    """
    state = seeds + (positions.to(torch.int64) + 1) * (0x9E3779B97F4A7C15 - 2**64)
    state = (state ^ _shift(state, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    state = (state ^ _shift(state, 27)) * (0x94D049BB133111EB - 2**64)
    return _shift(state ^ _shift(state, 31), 11).double() * 2.0**-53


def _shift(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shift int64 to the right as if it had no sign."""
    return torch.bitwise_and(bits >> by, 2 ** (64 - by) - 1)


HOOKS = (
    Patch(
        target="sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        signature=(
            "(self, batch, forward_batch=None, pp_proxy_tensors=None, is_verify=False, skip_attn_backend_init=None, *, "
            "capture_hidden_mode=None, return_kv_loc_plan=False)"
        ),
        kind="before",
        hook=note_seeds,
        why="the sampler is not told which request a row belongs to",
        effect="the sampling parameters of a forward pass carry the seeds of its requests",
    ),
    Patch(
        target="sglang.srt.layers.sampler.Sampler._sample_from_probs",
        signature="(self, probs, sampling_info, positions, simple_sampling_case)",
        kind="after",
        hook=redraw_seeded,
        why="`seed` has no effect without deterministic inference",
        effect="a row with a seed is drawn by seed and position, the others as before",
    ),
)
