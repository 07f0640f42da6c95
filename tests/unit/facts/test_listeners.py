"""Who owns a port."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Listener, files, find_listener, read_listeners
from tests.fixtures.machines.build import BOOT_TIME

if TYPE_CHECKING:
    from pathlib import Path

ANY = "0.0.0.0"  # noqa: S104 nothing is bound to it
OLD_ENGINE = "/system.slice/old-engine.service"


def test_every_listener_is_found_by_port_and_address(two_sockets: Path) -> None:
    """Both tables are read; connections are left out; an IPv4-mapped address is given as IPv4."""
    assert [(one.port, one.address, one.uid, one.pid) for one in read_listeners(two_sockets)] == [
        (22, ANY, 0, 800),
        (22, "::", 0, 800),
        (5432, "127.0.0.1", 70, None),
        (18000, "127.0.0.1", 985, 4000),
        (18001, "2001:db8::1", 985, 4001),
        (18005, "127.0.0.1", 990, 820),
    ]


def test_a_listener_names_its_owner(two_sockets: Path) -> None:
    """Start, control group and command of the process come along: they tell ours from a stranger."""
    assert find_listener(18000, two_sockets) == Listener(
        port=18000,
        address="127.0.0.1",
        uid=985,
        pid=4000,
        holders=(4000, 4001),
        start_ticks=5000,
        start_time=BOOT_TIME + 50.0,
        cgroup=OLD_ENGINE,
        command=("python3", "-m", "engine", "--port", "18000"),
    )


def test_an_owner_whose_descriptors_may_not_be_read_is_unknown(two_sockets: Path) -> None:
    """The user of the socket is known all the same."""
    assert find_listener(5432, two_sockets) == Listener(
        port=5432,
        address="127.0.0.1",
        uid=70,
        pid=None,
        holders=(),
        start_ticks=None,
        start_time=None,
        cgroup=None,
        command=None,
    )


def test_init_is_not_taken_for_the_owner_of_an_activated_socket(two_sockets: Path) -> None:
    """Init started first and holds the socket too, but the service answers on it."""
    listener = find_listener(22, two_sockets)
    assert listener is not None
    assert (listener.pid, listener.holders) == (800, (1, 800))


def test_init_owns_a_socket_that_no_service_has_taken_yet(two_sockets: Path) -> None:
    """Before the first connection there is nobody else."""
    shutil.rmtree(two_sockets / "proc/800")
    listener = find_listener(22, two_sockets)
    assert listener is not None
    assert (listener.pid, listener.holders) == (1, (1,))


def test_a_free_port_has_no_listener(two_sockets: Path) -> None:
    """An established connection does not make a listener."""
    assert find_listener(30000, two_sockets) is None


@pytest.mark.parametrize(
    ("address", "answering"),
    [(None, ANY), ("127.0.0.1", ANY), ("::1", "::"), ("0:0::1", "::")],
)
def test_wildcards_answer_for_an_address(two_sockets: Path, address: str | None, answering: str) -> None:
    """Each family has its own wildcard."""
    listener = find_listener(22, two_sockets, address=address)
    assert listener is not None
    assert listener.address == answering


def test_a_socket_bound_to_the_address_wins_over_a_wildcard(two_sockets: Path) -> None:
    """As in the kernel, so that a stranger on the wildcard does not stand in for the engine, or hide it."""
    _add_socket(two_sockets, "0100007F:0016", inode=18000)
    listener = find_listener(22, two_sockets, address="127.0.0.1")
    assert listener is not None
    assert (listener.address, listener.pid) == ("127.0.0.1", 4000)


def test_a_socket_bound_elsewhere_does_not_answer(two_sockets: Path) -> None:
    """Same port, another address: somebody else's business."""
    assert find_listener(18001, two_sockets, address="127.0.0.1") is None
    assert find_listener(18001, two_sockets, address="2001:db8::1") is not None


def test_sockets_that_share_a_port_are_one_listener_with_all_holders(two_sockets: Path) -> None:
    """With SO_REUSEPORT the kernel spreads connections: a check must see every process that may answer."""
    _add_socket(two_sockets, "0100007F:4650", inode=18005)
    listener = find_listener(18000, two_sockets)
    assert listener is not None
    assert listener.holders == (820, 4000, 4001)


def test_a_process_that_ends_between_scan_and_read_holds_nothing(
    two_sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptors were seen, its command no longer: the next holder owns the socket."""
    _end_while_read(monkeypatch, two_sockets / "proc/4000", at="cmdline")
    listener = find_listener(18000, two_sockets)
    assert listener is not None
    assert (listener.pid, listener.holders) == (4001, (4001,))


def _add_socket(root: Path, local: str, inode: int) -> None:
    table = root / "proc/net/tcp"
    line = f"   9: {local} 00000000:0000 0A 00000000:00000000 00:00000000 00000000   985        0 {inode} 1 0 100"
    table.write_text(f"{table.read_text()}{line}\n")


def _end_while_read(monkeypatch: pytest.MonkeyPatch, process: Path, at: str) -> None:
    read = files.read_bytes

    def end_process_then_read(path: Path) -> bytes | None:
        if path == process / at:
            shutil.rmtree(process)
        return read(path)

    monkeypatch.setattr(files, "read_bytes", end_process_then_read)
