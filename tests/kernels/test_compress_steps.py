"""The compressor over time: a sequence cut into steps leaves the same cache as one pass, and what is stored is the latent."""

import pytest
import torch

from dsv41_kernels import layout, rotary
from dsv41_kernels.ops.compress import kernel, reference

TOKENS, RING, SLOTS = 40, 8, 64


class Sequence:
    """One request's projections and cache; `step` feeds a run of its positions to the kernel."""

    def __init__(self, entry: layout.EntryLayout):
        generator = torch.Generator().manual_seed(5)
        self.fused = torch.randn(TOKENS + 8, 1024, generator=generator)
        self.entry = entry
        self.cache = layout.empty_cache(entry, 1, SLOTS)
        self.ring = torch.full((2 * RING, 1024), torch.nan)
        self.table = rotary.frequency_table(TOKENS + 8)
        self.norm = torch.ones(512, dtype=torch.bfloat16)

    def step(self, first: int, count: int, *, extend: bool, rejected_from: int | None = None) -> torch.Tensor:
        """Compress positions first .. first + count - 1; rows from `rejected_from` on carry other numbers (wrong drafts)."""
        rows = self.fused[first : first + count].clone()
        if rejected_from is not None:
            rows[rejected_from - first :] += 7.0
        positions = torch.arange(first, first + count)
        lengths = torch.tensor([count], dtype=torch.int32)
        return kernel.compress(
            kv=rows[:, :512],
            score=rows[:, 512:],
            ring=self.ring,
            ring_size=RING,
            norm_weight=self.norm,
            eps=1e-6,
            positions=positions,
            request=torch.ones(count, dtype=torch.int64),
            location=positions + 2,
            start=torch.zeros(1, dtype=torch.int32) if extend else None,
            length=lengths if extend else None,
            table=self.table,
            cache=self.cache,
            layout=self.entry.name,
            slots=SLOTS,
        )["latent"]


@pytest.mark.parametrize("entry", [layout.V4, layout.V41_FP4], ids=lambda entry: entry.name)
def test_steps_leave_the_same_cache_as_one_pass(entry: layout.EntryLayout):
    """Extends of odd and even lengths, longer than the ring, then decode, then verify blocks with rejected rows."""
    whole, cut = Sequence(entry), Sequence(entry)
    whole.step(0, TOKENS, extend=True)
    at = 0
    for count in (11, 4, 1, 3):
        cut.step(at, count, extend=True)
        at += count
    for _ in range(3):
        cut.step(at, 1, extend=False)
        at += 1
    for accepted in (6, 1, 2, 5, 3, 1):
        cut.step(at, 6, extend=False, rejected_from=at + accepted)
        at += accepted
    assert at == TOKENS
    # The last block's rejected rows lie beyond the sequence; the next step would overwrite them.
    completed = torch.arange(TOKENS // 2) + 1
    bytes_of = [layout.read_bytes(entry, sequence.cache, SLOTS, completed) for sequence in (whole, cut)]
    assert torch.equal(*bytes_of)


@pytest.mark.parametrize("entry", [layout.V4, layout.V41, layout.V41_FP4], ids=lambda entry: entry.name)
def test_the_stored_entry_is_the_latent_bit_for_bit(entry: layout.EntryLayout):
    """Rotation, rounding and quantisation of the kernel's own latent give exactly the bytes in the cache."""
    sequence = Sequence(entry)
    latent = sequence.step(0, 16, extend=True)
    expected = layout.empty_cache(entry, 1, SLOTS)
    positions = torch.arange(16)
    reference.store(latent, positions, positions + 2, 2, sequence.table, expected, entry.name, SLOTS)
    assert torch.equal(sequence.cache, expected)


def test_a_padded_row_writes_nothing():
    """Location 0 leaves cache and ring as they were, although its request and position point at live state."""
    sequence = Sequence(layout.V4)
    before = sequence.cache.clone()
    ring = torch.zeros(2 * RING, 1024)
    kernel.compress(
        kv=torch.ones(2, 512),
        score=torch.ones(2, 512),
        ring=ring,
        ring_size=RING,
        norm_weight=sequence.norm,
        eps=1e-6,
        positions=torch.tensor([0, 1]),
        request=torch.tensor([0, 0]),
        location=torch.tensor([0, 0]),
        start=None,
        length=None,
        table=sequence.table,
        cache=sequence.cache,
        layout="v4",
        slots=SLOTS,
    )
    assert torch.equal(sequence.cache, before)
    assert not ring.any()
