"""Which way data takes, from the line in which UCX says what it chose. Pure.

    ... ucp_worker.c ... UCX  INFO    initiator: cfg#3 inter-node am(tcp/lo cma/memory)

Control messages always have a lane of their own, so a `tcp` in the line proves nothing; what carries bulk data is the
fastest lane named.
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


def find_lanes(log: str) -> tuple[str, ...]:
    """Return the transports of every configuration UCX printed, in order of appearance, without their devices."""
    found: dict[str, None] = {}
    for group in re.findall(r"cfg#\d+[^\n]*?((?:\s(?:am|rma|tag|amo|stream|ka)\([^)]*\))+)", log):
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
