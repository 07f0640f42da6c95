"""The Triton functions equal the torch codecs bit for bit (interpreter; tests/gpu repeats it on the hardware)."""

import pytest
import torch

from dsv41_kernels import codec, layout, probe


@pytest.fixture(scope="module")
def numbers() -> torch.Tensor:
    """Random numbers of every magnitude, all midpoints and code points of both formats, and their neighbours."""
    grid = codec.decode_e4m3(torch.arange(127, dtype=torch.uint8))
    fp4 = codec.decode_e2m1(torch.arange(8, dtype=torch.uint8))
    points = torch.cat([grid, (grid[1:] + grid[:-1]) / 2, fp4, (fp4[1:] + fp4[:-1]) / 2])
    near = torch.cat([points, torch.nextafter(points, torch.tensor(1e9)), torch.nextafter(points, torch.tensor(0.0))])
    random = torch.randn(2000) * torch.exp2(torch.randint(-14, 12, (2000,)).float())
    x = torch.cat([near, random, torch.tensor([0.0, 1e30, float("inf"), 2.0**-40])])
    return torch.cat([x, -x])


def test_encode_e2m1(numbers: torch.Tensor):
    """E2M1 codes, ties and saturation included."""
    assert torch.equal(probe.encode_e2m1(numbers), codec.encode_e2m1(numbers))


def test_encode_e4m3(numbers: torch.Tensor):
    """E4M3 codes, subnormals, ties and saturation included."""
    assert torch.equal(probe.encode_e4m3(numbers), codec.encode_e4m3(numbers))


def test_decode_e2m1():
    """All 16 codes."""
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(probe.decode_e2m1(codes), codec.decode_e2m1(codes))


def test_decode_e4m3():
    """All finite codes."""
    codes = torch.cat([torch.arange(0, 127), torch.arange(128, 255)]).to(torch.uint8)
    assert torch.equal(probe.decode_e4m3(codes), codec.decode_e4m3(codes))


def test_ceil_exponent(numbers: torch.Tensor):
    """Powers of two stay, everything else goes up."""
    x = numbers[(numbers > 0) & numbers.isfinite()]
    assert torch.equal(probe.ceil_exponent(x), codec.encode_ue8m0(x))


@pytest.mark.parametrize("slots", [64, 256])
@pytest.mark.parametrize("entry", [layout.V4, layout.V41, layout.V41_FP4], ids=lambda entry: entry.name)
def test_load_entries(entry: layout.EntryLayout, slots: int):
    """Entries of every layout come back exactly."""
    cache = layout.empty_cache(entry, 3, slots)
    everything = torch.arange(3 * slots)
    layout.write(entry, cache, slots, everything, codec.round_fp4_entry(torch.randn(3 * slots, 512)))
    index = torch.randperm(3 * slots)[:32].to(torch.int32)
    expected = layout.read(entry, cache, slots, index)
    assert torch.equal(probe.load_entries(entry, cache, slots, index).float(), expected)
