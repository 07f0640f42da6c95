import pytest
import torch

from dsv41_kernels import codec

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_every_e2m1_code_round_trips():
    """All 16 codes decode to the format's table and encode to themselves."""
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(codec.encode_e2m1(codec.decode_e2m1(codes)), codes)
    assert codec.decode_e2m1(codes).tolist() == E2M1 + [-v for v in E2M1]


@pytest.mark.parametrize(
    ("tie", "value"), [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]
)
def test_e2m1_ties_go_to_the_even_code(tie: float, value: float):
    """A midpoint goes to the neighbour with the even code; a hair to either side goes to the nearest."""
    eps = 2**-20
    below, at, above = codec.decode_e2m1(codec.encode_e2m1(torch.tensor([tie - eps, tie, tie + eps])))
    neighbours = sorted([float(below), float(above)])
    assert float(at) == value
    assert neighbours == [E2M1[E2M1.index(neighbours[0])], E2M1[E2M1.index(neighbours[0]) + 1]]


def test_e2m1_saturates_and_keeps_the_sign_of_zero():
    """Large and infinite values become 6, NaN becomes 0, small negatives become -0."""
    x = torch.tensor([7.0, float("inf"), -float("inf"), -0.1, -0.0, float("nan")])
    assert codec.encode_e2m1(x).tolist() == [7, 7, 15, 8, 8, 0]


def test_every_e4m3_code_equals_torch_and_round_trips():
    """All 256 codes decode as torch's own type does; finite ones encode to themselves."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = codec.decode_e4m3(codes)
    assert torch.equal(values.nan_to_num(1234.0), codes.view(torch.float8_e4m3fn).float().nan_to_num(1234.0))
    finite = ~values.isnan()
    assert torch.equal(codec.encode_e4m3(values[finite]), codes[finite])


def test_e4m3_ties_go_to_the_even_code():
    """Every midpoint of two neighbours goes to one of them, always the even code."""
    values = codec.decode_e4m3(torch.arange(127, dtype=torch.uint8))
    codes = codec.encode_e4m3((values[1:] + values[:-1]) / 2)
    assert (codes % 2 == 0).all()
    assert torch.equal((codes.int() - torch.arange(126)).unique(), torch.tensor([0, 1], dtype=torch.int32))


def test_e4m3_saturates_and_marks_nan():
    """Overflow and infinity become 448, NaN becomes 0x7f, half of the smallest subnormal becomes zero."""
    x = torch.tensor([449.0, 480.0, 1e30, float("inf"), -float("inf"), float("nan"), 2.0**-10, -(2.0**-10), 2.0**-9])
    assert codec.encode_e4m3(x).tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x00, 0x80, 0x01]


def test_ue8m0_rounds_up_to_a_power_of_two():
    """The scale is never below its argument; the byte stays within 1..254; NaN and infinity give 255."""
    x = torch.tensor([1.0, 1.0 + 2**-23, 1.5, 2.0, 2.0**-126, 2.0**-140, 3e38, float("nan"), float("inf")])
    assert codec.encode_ue8m0(x).tolist() == [127, 128, 128, 128, 1, 1, 254, 255, 255]


def test_every_ue8m0_byte_round_trips():
    """Bytes 1..254 are exact powers of two; 0 is the subnormal, 255 is NaN."""
    byte = torch.arange(1, 255, dtype=torch.int32).to(torch.uint8)
    value = codec.decode_ue8m0(byte)
    assert torch.equal(codec.encode_ue8m0(value), byte)
    assert torch.equal(value.double().log2(), byte.double() - 127)
    assert codec.decode_ue8m0(torch.tensor([0, 255], dtype=torch.uint8)).tolist()[0] == 2.0**-127
    assert codec.decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()


def test_nibbles_hold_the_even_channel_low():
    """The even channel lies in the low nibble, and unpacking inverts packing."""
    assert codec.pack_nibbles(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]
    codes = torch.randint(0, 16, (5, 64), dtype=torch.uint8)
    assert torch.equal(codec.unpack_nibbles(codec.pack_nibbles(codes)), codes)


def test_entry_rounding_is_idempotent():
    """Rounding a rounded entry changes nothing."""
    x = codec.round_fp4_entry(torch.randn(64, 512))
    assert torch.equal(codec.round_fp4_entry(x), x)


def test_entry_rounding_is_unbiased():
    """Rounding to nearest even has no preferred direction: the mean error is far below the mean magnitude of errors."""
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(3))
    error = codec.round_fp4_entry(x) - x
    assert error.mean().abs() < 0.01 * error.abs().mean()


def test_index_packing_is_two_stages():
    """A near-zero group keeps values in the first stage that the packer's higher floor sends to zero."""
    x = torch.full((1, 128), 1e-6)
    assert (codec.round_fp4_index(x) > 0).all()
    code, scale = codec.quantise_fp4_index(x)
    assert code.eq(0).all()
    assert scale.eq(int(codec.encode_ue8m0(torch.tensor(1e-4)))).all()


def test_index_packing_drops_the_sign_of_zero():
    """No index key holds the code of -0."""
    x = torch.full((1, 128), -0.01)
    x[0, ::32] = 6.0
    code, _ = codec.quantise_fp4_index(x)
    assert not code.eq(8).any()
