"""What the hand-off exports, on the engine's own page. Every label has a closed set of values.

Made on first use and the library imported then: it decides at import whether metrics are shared between processes, and SGLang
sets up the directory for that after it has loaded its plug-ins.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

_SECONDS = tuple(round(base * 10**exponent, 5) for exponent in range(-5, 2) for base in (1, 3))
_BYTES = tuple(float(4**exponent) for exponent in range(6, 18))
_DESCRIPTORS = tuple(float(4**exponent) for exponent in range(11))


@cache
def stage_seconds() -> Histogram:
    """Seconds of one hand-off in one stage; `stage` is one of `waterfall.STAGES`, which says what each is."""
    from prometheus_client import Histogram  # noqa: PLC0415 - see above

    return Histogram(
        "dsv41_handoff_stage_seconds", "Seconds of one hand-off in one stage.", ["stage"], buckets=_SECONDS
    )


@cache
def transfer_bytes() -> Histogram:
    """Bytes of one hand-off, KV, states and metadata together."""
    from prometheus_client import Histogram  # noqa: PLC0415

    return Histogram("dsv41_handoff_bytes", "Bytes of one hand-off.", buckets=_BYTES)


@cache
def transfer_descriptors() -> Histogram:
    """Blocks that NIXL was given for one hand-off; each costs about 7.5 us between two H200s, whatever its size."""
    from prometheus_client import Histogram  # noqa: PLC0415

    return Histogram("dsv41_handoff_descriptors", "Blocks NIXL was given for one hand-off.", buckets=_DESCRIPTORS)


@cache
def transfers() -> Counter:
    """Finished hand-offs; `path` is `packed` when everything but metadata went packed, `stock` when nothing did, else `mixed`."""
    from prometheus_client import Counter  # noqa: PLC0415

    return Counter("dsv41_handoff_transfers_total", "Finished hand-offs by the path their KV took.", ["path"])


@cache
def fallbacks() -> Counter:
    """How often SGLang's own path was taken although packing is on.

    By peer: `peer_lacks_it`, `layout`, `write_failed`, `slot_lost`; by chunk: `no_slot`, `slot_too_small`.
    """
    from prometheus_client import Counter  # noqa: PLC0415

    return Counter("dsv41_handoff_fallbacks_total", "Times that a peer or chunk was not packed, by reason.", ["reason"])


@cache
def slots_busy() -> Gauge:
    """Slots that hold a block, at prefill and at every decode rank it sends to; 0 when nothing is under way."""
    from prometheus_client import Gauge  # noqa: PLC0415

    return Gauge("dsv41_handoff_slots_busy", "Staging slots that hold a block.", multiprocess_mode="livesum")


@cache
def staging_bytes() -> Gauge:
    """Bytes of staging areas of all ranks of the engine; none before the first peer has registered."""
    from prometheus_client import Gauge  # noqa: PLC0415

    return Gauge("dsv41_handoff_staging_bytes", "Bytes of staging areas.", multiprocess_mode="livesum")
