"""Cache layouts: the bytes of one entry, and where an entry lies in its page.

An entry is one cache row: the 512-channel latent of one token (ratio 1) or of a pair of tokens (ratio 2), channels
0..447 without position ("nope") and 448..511 rotated ("rope"), or a 128-channel index key.

    V4, 584 B          448 x e4m3 nope | 64 x bf16 rope        || 7 x ue8m0 (one per 64 nope channels) | 1 B unused
    V41, 528 B         512 x e4m3                              || 16 x ue8m0 (one per 32 channels)
    V41_FP4, 288 B     256 B = 512 x e2m1, even channel low    || 32 x e4m3 (one per 16 channels)
    INDEX_KEY, 68 B    64 B = 128 x e2m1, even channel low     || 4 x ue8m0 (one per 32 channels)
                       ---------------- data ------------------    ------- scales -------

A page is block-split: the data of all its slots, then the scales of all its slots, then padding up to a multiple of
`page_align` bytes (index pages have none).

    byte 0                          slots * data_bytes             slots * entry_bytes   page_bytes
    | data 0 | data 1 | ... | data n-1 | scales 0 | ... | scales n-1 | padding            |

Slot `i` of the cache is slot `i % slots` of page `i // slots`. With P = slots per page:

    data   = (i // P) * page_bytes              + (i % P) * data_bytes
    scales = (i // P) * page_bytes + P * data_bytes + (i % P) * scale_bytes

Not served: the engine's `v41_new` and `v41_fp4_new`, which it takes on sm_100 alone when asked to, where each entry's scales follow its data
and pages have no padding; and `uniform_fp8`, TRT-LLM's. The launchers refuse them by name.

Bytes and page rounding are SGLang 0.5.23's (kernels/ops/attention/dsv4/kv_layout.py); the quantisation formulas name
their source in `codec`.
"""

from __future__ import annotations

import dataclasses

import torch

from dsv41_kernels import codec

HEAD_DIM = 512
ROPE_DIM = 64
NOPE_DIM = HEAD_DIM - ROPE_DIM
INDEX_DIM = 128
FULL_PAGE = 256
"""Tokens per page of the engine's allocator; a source of ratio r holds FULL_PAGE / r slots per page."""
SOURCE_RATIOS = (2, 2, 2, 1)
"""Compression ratios of the four key-value sources, layers 2, 8, 14 and 20."""


@dataclasses.dataclass(frozen=True)
class EntryLayout:
    """Bytes of one entry and of a page of them. All sizes in bytes unless the name says otherwise."""

    name: str
    channels: int
    data_bytes: int
    scale_bytes: int
    group: int
    """Channels that share one scale."""
    page_align: int
    """A page's bytes are rounded up to a multiple of this."""

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry without its share of the page padding."""
        return self.data_bytes + self.scale_bytes

    def page_bytes(self, slots: int) -> int:
        """Bytes of a page of `slots` entries, padding included."""
        return -(-slots * self.entry_bytes // self.page_align) * self.page_align

    def data_offset(self, index: torch.Tensor, slots: int) -> torch.Tensor:
        """Byte offsets of the data of cache slots `index` (int64) in pages of `slots`."""
        return index // slots * self.page_bytes(slots) + index % slots * self.data_bytes

    def scale_offset(self, index: torch.Tensor, slots: int) -> torch.Tensor:
        """Byte offsets of the scales of cache slots `index` (int64) in pages of `slots`."""
        return index // slots * self.page_bytes(slots) + slots * self.data_bytes + index % slots * self.scale_bytes


V4 = EntryLayout("v4", HEAD_DIM, NOPE_DIM + 2 * ROPE_DIM, 8, 64, 576)
V41 = EntryLayout("v41", HEAD_DIM, HEAD_DIM, 16, 32, 512)
V41_FP4 = EntryLayout("v41_fp4", HEAD_DIM, HEAD_DIM // 2, 32, codec.FP4_ENTRY_GROUP, 256)
INDEX_KEY = EntryLayout("index_key", INDEX_DIM, INDEX_DIM // 2, 4, codec.INDEX_GROUP, 1)
LAYOUTS = {layout.name: layout for layout in (V4, V41, V41_FP4, INDEX_KEY)}

INDEX_SLOTS = 64
"""Index keys per page on every GPU without DeepGEMM's paged sparse logits (128 with them: sm_100, sm_103)."""


def pages_for(slots_needed: int, slots: int) -> int:
    """Pages that hold `slots_needed` entries."""
    return -(-slots_needed // slots)


FILL = 0xA5
"""What `empty_cache` fills with."""


def empty_cache(layout: EntryLayout, pages: int, slots: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A cache of `pages` pages filled with FILL, which makes unwritten bytes visible: uint8 [pages, page_bytes]."""
    return torch.full((pages, layout.page_bytes(slots)), FILL, dtype=torch.uint8, device=device)


def encode(layout: EntryLayout, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise values [n, channels] to data bytes [n, data_bytes] and scale bytes [n, scale_bytes], uint8.

    Values are taken as they are: an 8-bit layout's writer rounds them to FP4 first (`codec.round_fp4_entry`).
    """
    x = values.float()
    if layout is V4:
        amax = codec.group_amax(x[:, :NOPE_DIM], layout.group)
        scale = codec.encode_ue8m0(amax.clamp_min(1e-4) / codec.E4M3_MAX)
        nope = codec.encode_e4m3(x[:, :NOPE_DIM] / codec.spread(codec.decode_ue8m0(scale), layout.group))
        rope = x[:, NOPE_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8)
        return torch.cat([nope, rope], dim=1), torch.nn.functional.pad(scale, (0, 1))
    if layout is V41:
        amax = codec.group_amax(x, layout.group)
        scale = codec.encode_ue8m0((amax / codec.E4M3_MAX).clamp_min(1e-4))
        return codec.encode_e4m3(x / codec.spread(codec.decode_ue8m0(scale), layout.group)), scale
    quantise = codec.quantise_fp4_entry if layout is V41_FP4 else codec.quantise_fp4_index
    code, scale = quantise(x)
    return codec.pack_nibbles(code), scale


def decode(layout: EntryLayout, data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Inverse of `encode`: data and scale bytes to values [n, channels], float32. Exact: nothing is rounded."""
    if layout is V4:
        nope = codec.decode_e4m3(data[:, :NOPE_DIM]) * codec.spread(codec.decode_ue8m0(scale[:, :7]), layout.group)
        rope = data[:, NOPE_DIM:].contiguous().view(torch.bfloat16).float()
        return torch.cat([nope, rope], dim=1)
    if layout is V41:
        return codec.decode_e4m3(data) * codec.spread(codec.decode_ue8m0(scale), layout.group)
    decode_scale = codec.decode_e4m3 if layout is V41_FP4 else codec.decode_ue8m0
    return codec.decode_e2m1(codec.unpack_nibbles(data)) * codec.spread(decode_scale(scale), layout.group)


def _byte_index(offset: torch.Tensor, width: int) -> torch.Tensor:
    return offset[:, None] + torch.arange(width, device=offset.device)


def write(layout: EntryLayout, cache: torch.Tensor, slots: int, index: torch.Tensor, values: torch.Tensor) -> None:
    """Quantise values [n, channels] into cache slots `index` [n] of `cache` (uint8 [pages, page_bytes]), in place."""
    data, scale = encode(layout, values)
    flat = cache.view(-1)
    index = index.long()
    flat[_byte_index(layout.data_offset(index, slots), layout.data_bytes)] = data
    flat[_byte_index(layout.scale_offset(index, slots), layout.scale_bytes)] = scale


def read_bytes(layout: EntryLayout, cache: torch.Tensor, slots: int, index: torch.Tensor) -> torch.Tensor:
    """Raw bytes of cache slots `index` [n], data then scales: uint8 [n, entry_bytes]."""
    flat = cache.view(torch.uint8).reshape(-1)
    index = index.long()
    data = flat[_byte_index(layout.data_offset(index, slots), layout.data_bytes)]
    scale = flat[_byte_index(layout.scale_offset(index, slots), layout.scale_bytes)]
    return torch.cat([data, scale], dim=1)


def read(layout: EntryLayout, cache: torch.Tensor, slots: int, index: torch.Tensor) -> torch.Tensor:
    """Values of cache slots `index` [n], float32 [n, channels]."""
    data, scale = read_bytes(layout, cache, slots, index).split([layout.data_bytes, layout.scale_bytes], dim=1)  # type: ignore[no-untyped-call]
    return decode(layout, data, scale)


def bytes_per_token(layout: EntryLayout, *, padded: bool) -> float:
    """Bytes of global cache (entries and index keys of all sources) that one token of context costs.

    A source of ratio r holds 1/r entry and 1/r index key per token: 3 * 1/2 + 1 = 2.5 of each. `padded` counts what the
    pools reserve, page rounding included: (288 + 68) * 2.5 = 890 for V41_FP4, 1630 for V4, 1632.5 for V4 as reserved.
    """
    total = 0.0
    for ratio in SOURCE_RATIOS:
        slots = FULL_PAGE // ratio
        entry = layout.page_bytes(slots) / slots if padded else layout.entry_bytes
        total += (entry + INDEX_KEY.entry_bytes) / ratio
    return total
