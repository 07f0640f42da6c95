"""Which way data takes, from the lines in which UCX says what it chose. Pure.

With UCX_PROTO_INFO, as `plan.engine` sets it, it prints, once for each peer and kind of memory, what carries a remote write:

    | initiator intra-node cfg#1                               |
    | remote memory write by ucp_put* from host memory to host |
    | 0..inf | zero-copy   | cma/memory                        |

and with UCX_LOG_LEVEL=info the lanes of each connection:

    ... ucp_worker.c ... UCX  INFO    initiator: cfg#3 inter-node am(tcp/lo cma/memory)

Control messages always have a lane of their own, so a `tcp` in the second proves nothing; the first is about the data itself.
"""

from __future__ import annotations

import re

# From fast to slow; a lane counts as the first it matches.
_KINDS = (
    ("cuda_ipc", "cuda_ipc"),
    ("rdma", r"(rc|dc|ud|ib)\w*"),
    ("shm", "cma|xpmem|knem|posix|sysv|mm"),
    ("tcp", "tcp"),
)
UNKNOWN = "unknown"
_OPERATION = "remote memory write by ucp_put"
_PEER = re.compile(r"\| .*\b(self|intra-node|inter-node) cfg#\d+")
_LARGEST = re.compile(r"\|\s*\d+\.\.inf\s*\|[^|]*\|([^|]*)\|")


class WriteTables:
    """Reads a log line by line; `lanes` are the transports that carry large writes to a peer, device memory before host memory."""

    def __init__(self) -> None:
        """Begin before the first line."""
        self._to_peer = False
        self._memory = ""
        self._found: dict[str, tuple[str, ...]] = {}

    @property
    def lanes(self) -> tuple[str, ...]:
        """Transports without their devices; empty until UCX has chosen."""
        return self._found.get("device") or self._found.get("host") or ()

    def feed(self, line: str) -> bool:
        """Read one line; return whether `lanes` changed."""
        if (peer := _PEER.search(line)) is not None:
            self._to_peer, self._memory = peer[1] != "self", ""
        elif _OPERATION in line:
            self._memory = "host" if "from host memory" in line else "device"
        elif self._to_peer and self._memory and (largest := _LARGEST.search(line)) is not None:
            before = self.lanes
            self._found[self._memory] = tuple(re.findall(r"(\w+)/", largest[1]))
            return self.lanes != before
        return False


def find_write_lanes(log: str) -> tuple[str, ...]:
    """Return the transports that carry large writes to a peer, as the tables in `log` say; empty without a table."""
    tables = WriteTables()
    for line in log.splitlines():
        tables.feed(line)
    return tables.lanes


def find_lanes(log: str) -> tuple[str, ...]:
    """Return the transports of every configuration UCX printed, in order of appearance, without their devices."""
    found: dict[str, None] = {}
    for group in re.findall(r"cfg#\d+[^\n]*?((?:\s+(?:am|rma|rma_am|tag|amo|amo_am|stream|ka)\([^)]*\))+)", log):
        for lanes in re.findall(r"\(([^)]*)\)", group):
            for lane in lanes.split():
                found[lane.partition("/")[0]] = None
    return tuple(found)


def choose_lane(lanes: tuple[str, ...]) -> str:
    """Return the kind of lane that carries bulk data: cuda_ipc, rdma, shm, tcp, or unknown."""
    for kind, pattern in _KINDS:
        if any(re.fullmatch(pattern, lane) for lane in lanes):
            return kind
    return UNKNOWN


def is_slower(lane: str, than: str) -> bool:
    """Return whether `lane` is of a slower kind than another; an unknown one is not said to be."""
    order = [kind for kind, _ in _KINDS]
    return lane in order and than in order and order.index(lane) > order.index(than)
