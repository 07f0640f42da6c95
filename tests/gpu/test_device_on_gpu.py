"""The Triton functions on the hardware equal the torch codecs bit for bit, NaN codes included."""

import pytest
import torch

from dsv41_kernels import codec, layout, probe


@pytest.fixture(scope="module")
def numbers() -> torch.Tensor:
    """Code points and midpoints of E2M1 and E4M3, their float32 neighbours, and random numbers of every magnitude."""
    grid = codec.decode_e4m3(torch.arange(127, dtype=torch.uint8))
    fp4 = codec.decode_e2m1(torch.arange(8, dtype=torch.uint8))
    points = torch.cat([grid, (grid[1:] + grid[:-1]) / 2, fp4, (fp4[1:] + fp4[:-1]) / 2])
    near = torch.cat([points, torch.nextafter(points, torch.tensor(1e9)), torch.nextafter(points, torch.tensor(0.0))])
    random = torch.randn(200_000) * torch.exp2(torch.randint(-14, 12, (200_000,)).float())
    x = torch.cat([near, random, torch.tensor([0.0, 1e30, float("inf"), 2.0**-40])])
    return torch.cat([x, -x]).cuda()


def test_encoders_on_gpu(numbers: torch.Tensor):
    """E2M1 and E4M3 codes of 400,000 numbers."""
    assert torch.equal(probe.encode_e2m1(numbers), codec.encode_e2m1(numbers))
    assert torch.equal(probe.encode_e4m3(numbers), codec.encode_e4m3(numbers))


def test_decoders_on_gpu():
    """All 16 and all 256 codes."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).cuda()
    assert torch.equal(probe.decode_e2m1(codes), codec.decode_e2m1(codes))
    assert torch.equal(probe.decode_e4m3(codes).nan_to_num(1e9), codec.decode_e4m3(codes).nan_to_num(1e9))


def test_scale_exponent_on_gpu(numbers: torch.Tensor):
    """Powers of two stay, everything else goes up."""
    x = numbers[(numbers > 0) & numbers.isfinite()]
    assert torch.equal(probe.ceil_exponent(x), codec.encode_ue8m0(x))


@pytest.mark.parametrize("slots", [64, 128, 256])
@pytest.mark.parametrize("entry", [layout.V4, layout.V41, layout.V41_FP4], ids=lambda entry: entry.name)
def test_every_code_of_an_entry_decodes_exactly(entry: layout.EntryLayout, slots: int):
    """Random bytes in data and moderate scales: the packed conversion instructions give what the layout says."""
    pages = 3
    cache = torch.randint(0, 256, (pages, entry.page_bytes(slots)), dtype=torch.int32).to(torch.uint8).cuda()
    index = torch.randperm(pages * slots)[:32].to(torch.int32).cuda()
    scale = layout._byte_index(entry.scale_offset(index.long(), slots), entry.scale_bytes)
    if entry is layout.V41_FP4:
        cache.view(-1)[scale] = torch.randint(0, 127, scale.shape, dtype=torch.int32).to(torch.uint8).cuda()
    else:
        cache.view(-1)[scale] = torch.randint(100, 150, scale.shape, dtype=torch.int32).to(torch.uint8).cuda()
    expected = layout.read(entry, cache, slots, index)
    actual = probe.load_entries(entry, cache, slots, index).float()
    assert torch.equal(actual.nan_to_num(1e9, 2e9, -2e9), expected.nan_to_num(1e9, 2e9, -2e9))
