import pytest
import torch

from dsv41_kernels import codec, layout

ENTRY_LAYOUTS = [layout.V4, layout.V41, layout.V41_FP4]


@pytest.mark.parametrize(
    ("entry", "entry_bytes", "pages"),
    [
        (layout.V4, 584, {256: 149_760, 128: 74_880, 64: 37_440}),
        (layout.V41, 528, {256: 135_168, 128: 67_584, 64: 33_792}),
        (layout.V41_FP4, 288, {256: 73_728, 128: 36_864, 64: 18_432}),
        (layout.INDEX_KEY, 68, {64: 4_352, 128: 8_704}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_bytes_of_entries_and_pages(entry: layout.EntryLayout, entry_bytes: int, pages: dict[int, int]):
    """Entry bytes, and page bytes with their padding."""
    assert entry.entry_bytes == entry_bytes
    assert {slots: entry.page_bytes(slots) for slots in pages} == pages


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("entry", ENTRY_LAYOUTS, ids=lambda entry: entry.name)
def test_entries_and_pages_are_the_engines(entry: layout.EntryLayout):
    """Sizes, groups, padding and where slot `i` lies, from SGLang's own `KVLayout`; its interleaved layouts are others."""
    engine = pytest.importorskip("sglang.kernels.ops.attention.dsv4.kv_layout", reason="the engine is not installed")
    theirs = engine.KVLayout(entry.name)
    assert not theirs.is_interleaved
    assert (entry.data_bytes, entry.scale_bytes, entry.group, entry.page_align) == (
        theirs.data_bytes,
        theirs.scale_bytes,
        theirs.tile_size,
        theirs.page_align,
    )
    index = torch.arange(600)
    for slots in (64, 128, 256):
        assert entry.page_bytes(slots) == theirs.page_bytes(slots)
        stride, base, scale_stride = theirs.row_addressing(slots)
        page = index // slots * theirs.page_bytes(slots)
        assert torch.equal(entry.data_offset(index, slots), page + index % slots * stride)
        assert torch.equal(entry.scale_offset(index, slots), page + base + index % slots * scale_stride)
    served = {each.name for each in ENTRY_LAYOUTS}
    assert {each.value for each in engine.KVLayout} - served == {"uniform_fp8", "v41_new", "v41_fp4_new"}
    for name in ("v41_new", "v41_fp4_new"):
        assert engine.KVLayout(name).is_interleaved
        assert f"`{name}`" in layout.__doc__


def test_bytes_per_token():
    """One token costs 2.5 entries and 2.5 index keys; page padding adds one byte per V4 entry."""
    assert layout.bytes_per_token(layout.V41_FP4, padded=False) == (288 + 68) * 2.5 == 890
    assert layout.bytes_per_token(layout.V41_FP4, padded=True) == 890
    assert layout.bytes_per_token(layout.V41, padded=False) == (528 + 68) * 2.5 == 1490
    assert layout.bytes_per_token(layout.V41, padded=True) == 1490
    assert layout.bytes_per_token(layout.V4, padded=False) == (584 + 68) * 2.5 == 1630
    assert layout.bytes_per_token(layout.V4, padded=True) == (585 + 68) * 2.5 == 1632.5


@pytest.mark.parametrize("slots", [64, 128, 256])
@pytest.mark.parametrize("entry", [*ENTRY_LAYOUTS, layout.INDEX_KEY], ids=lambda entry: entry.name)
def test_every_byte_of_a_page_belongs_to_one_entry(entry: layout.EntryLayout, slots: int):
    """Data and scales of all slots tile the page without overlap; the padding belongs to none."""
    index = torch.arange(2 * slots)
    owners = torch.zeros(2 * entry.page_bytes(slots), dtype=torch.int32)
    for start, width in (
        (entry.data_offset(index, slots), entry.data_bytes),
        (entry.scale_offset(index, slots), entry.scale_bytes),
    ):
        owners.index_add_(
            0, (start[:, None] + torch.arange(width)).flatten(), torch.ones(len(index) * width, dtype=torch.int32)
        )
    pages = owners.view(2, -1)
    used = slots * entry.entry_bytes
    assert pages[:, :used].eq(1).all()
    assert pages[:, used:].eq(0).all()


@pytest.mark.parametrize("entry", [*ENTRY_LAYOUTS, layout.INDEX_KEY], ids=lambda entry: entry.name)
def test_what_a_layout_stores_it_returns(entry: layout.EntryLayout):
    """Quantised values survive a second write bit for bit, and the neighbours of a written slot are untouched."""
    slots, index = 64, torch.tensor([0, 5, 63, 64, 130, 191])
    cache = layout.empty_cache(entry, 3, slots)
    values = torch.randn(len(index), entry.channels) * 3
    layout.write(entry, cache, slots, index, values)
    stored = layout.read(entry, cache, slots, index)
    again = cache.clone()
    layout.write(entry, again, slots, index, stored)
    assert torch.equal(layout.read(entry, again, slots, index), stored)
    error = (stored - values).norm() / values.norm()
    assert error < (0.04 if entry in (layout.V4, layout.V41) else 0.13)
    untouched = torch.tensor([1, 4, 6, 62, 65, 129, 131])
    data = layout._byte_index(entry.data_offset(untouched, slots), entry.data_bytes)
    assert cache.view(-1)[data].eq(0xA5).all()


def test_v4_keeps_rope_channels_in_bfloat16():
    """The last 64 channels of a V4 entry lose nothing."""
    values = torch.randn(4, 512).bfloat16().float()
    cache = layout.empty_cache(layout.V4, 1, 64)
    layout.write(layout.V4, cache, 64, torch.arange(4), values)
    assert torch.equal(layout.read(layout.V4, cache, 64, torch.arange(4))[:, 448:], values[:, 448:])


def test_fp4_values_are_exact_in_every_layout():
    """An entry rounded to FP4 with scales that are powers of two fits the 8-bit layouts without a second error."""
    values = codec.decode_e2m1(torch.randint(0, 16, (8, 512), dtype=torch.uint8))
    values[:, ::16] = 6.0
    for entry in ENTRY_LAYOUTS:
        cache = layout.empty_cache(entry, 1, 64)
        layout.write(entry, cache, 64, torch.arange(8), values)
        assert torch.equal(layout.read(entry, cache, 64, torch.arange(8)), values), entry.name
