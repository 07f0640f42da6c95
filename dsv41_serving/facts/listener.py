"""Who listens on which TCP port: the kernel's socket tables, matched with the descriptors of every process.

The supervisor and the gate prove with it that a port belongs to the process they started.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsv41_serving.facts import files
from dsv41_serving.facts.model import Listener, Process
from dsv41_serving.facts.process import read_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_LISTEN = "0A"
_INIT = 1
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class _Socket(NamedTuple):
    """What listens on one address and port: one socket, or several that share it through SO_REUSEPORT."""

    port: int
    address: str
    uid: int
    inodes: tuple[int, ...]


def read_listeners(root: Path = Path("/")) -> tuple[Listener, ...]:
    """Return every listening TCP socket of this network namespace by port and address.

    Raises InputError when a socket table is malformed.
    """
    return _name_owners(_read_sockets(root), root)


def find_listener(port: int, root: Path = Path("/"), *, address: str | None = None) -> Listener | None:
    """Return the listener on TCP `port`, or None.

    With an IP `address`, the one that answers a connection to it: a socket bound to the address itself wins over
    a wildcard, as in the kernel (`::` is taken to serve IPv4 too, its default). Without, the first by address.
    Raises InputError as `read_listeners` does, ValueError when `address` is no IP address.
    """
    sockets = {socket.address: socket for socket in _read_sockets(root) if socket.port == port}
    candidates = sorted(sockets) if address is None else _list_answering(ipaddress.ip_address(address))
    answering = [sockets[candidate] for candidate in candidates if candidate in sockets]
    return next(iter(_name_owners(answering[:1], root)), None)


def _list_answering(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[str]:
    """Return the addresses a socket may be bound to in order to answer at `address`, the strongest claim first."""
    wildcards = ["0.0.0.0", "::"] if isinstance(address, ipaddress.IPv4Address) else ["::"]  # noqa: S104 nothing is bound
    return [str(address), *wildcards]


def _name_owners(sockets: list[_Socket], root: Path) -> tuple[Listener, ...]:
    holders = _find_holders({inode for socket in sockets for inode in socket.inodes}, root)
    processes = {pid: read_process(pid, root) for pids in holders.values() for pid in pids}
    listeners = []
    for socket in sockets:
        pids = {pid for inode in socket.inodes for pid in holders[inode]}
        listeners.append(_name_owner(socket, (process for pid in pids if (process := processes[pid]))))
    return tuple(listeners)


def _name_owner(socket: _Socket, processes: Iterable[Process]) -> Listener:
    holders = sorted(processes, key=lambda process: process.pid)
    owner = _choose_owner(holders)
    return Listener(
        port=socket.port,
        address=socket.address,
        uid=socket.uid,
        pid=owner.pid if owner else None,
        holders=tuple(process.pid for process in holders),
        start_ticks=owner.start_ticks if owner else None,
        start_time=owner.start_time if owner else None,
        cgroup=owner.cgroup if owner else None,
        command=owner.command if owner else None,
    )


def _choose_owner(holders: list[Process]) -> Process | None:
    """Return the holder that started first: children inherit a socket. Init holds those it activates for services."""
    services = [process for process in holders if process.pid != _INIT] or holders
    return min(services, key=lambda process: (process.start_ticks, process.pid), default=None)


def _read_sockets(root: Path) -> list[_Socket]:
    inodes: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        path = root / table
        for line in (files.read_text(path) or "").splitlines()[1:]:  # the first line holds the column titles
            try:
                _, local, _, state, _, _, _, uid, _, inode = line.split()[:10]
                address, _, port = local.partition(":")
                if state == _LISTEN:
                    inodes[int(port, 16), _decode_address(address), int(uid)].append(int(inode))
            except ValueError:
                raise files.malformed(path, f"expected a line of the socket table, found {line[:60]!r}") from None
    return [_Socket(*key, tuple(found)) for key, found in sorted(inodes.items())]


def _decode_address(text: str) -> str:
    """Return the IP address of a socket table: groups of 4 bytes, each printed as a number of the host's byte order."""
    packed = b"".join(int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _find_holders(inodes: Collection[int], root: Path) -> dict[int, set[int]]:
    """Return the pids whose descriptors refer to each socket, as far as this user may read descriptors."""
    holders: dict[int, set[int]] = defaultdict(set)
    if not inodes:
        return holders
    for directory in (root / "proc").iterdir():
        if not directory.name.isdecimal():
            continue
        for inode in _read_socket_inodes(directory / "fd"):
            if inode in inodes:
                holders[inode].add(int(directory.name))
    return holders


def _read_socket_inodes(directory: Path) -> Iterator[int]:
    """Yield the sockets in a descriptor directory; none when it may not be read or the process ends meanwhile."""
    try:
        descriptors = list(directory.iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        with suppress(OSError):  # closed since the directory was listed
            if found := _SOCKET.fullmatch(os.fspath(descriptor.readlink())):
                yield int(found[1])
