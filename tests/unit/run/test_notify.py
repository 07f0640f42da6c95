"""What the service manager hears, on a real datagram socket."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.run.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """Listen at `address` as systemd does; '@' stands for the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + address[1:] if address.startswith("@") else address)
        channel.settimeout(10)
        yield channel


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_hears_every_message(tmp_path: Path, abstract: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """At a path and in the abstract namespace, in the words of sd_notify(3)."""
    address = f"@dsv41-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with manager(address) as channel:
        notifier = Notifier({"NOTIFY_SOCKET": address})
        assert notifier.enabled
        notifier.status("loading weights (shard 3 of 48)")
        notifier.extend_start(12.5)
        notifier.ready("ready on port 30100")
        notifier.alive()
        notifier.stopping("draining")
        assert [channel.recv(4096).decode() for _ in range(5)] == [
            "STATUS=loading weights (shard 3 of 48)",
            "EXTEND_TIMEOUT_USEC=12500000",
            "READY=1\nSTATUS=ready on port 30100",
            "WATCHDOG=1",
            "STOPPING=1\nSTATUS=draining",
        ]


def test_without_a_manager_nothing_is_sent() -> None:
    """A service in a terminal behaves the same."""
    notifier = Notifier({})
    assert not notifier.enabled
    notifier.ready("ready")


def test_a_manager_that_does_not_listen_ends_nothing(tmp_path: Path) -> None:
    """It may be restarting itself."""
    address = str(tmp_path / "notify")
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.status("absent")
    with manager(address):
        pass
    notifier.status("refused")


@pytest.mark.parametrize(("usec", "seconds"), [("30000000", 30.0), ("", None), ("x", None), ("-5", None)])
def test_the_watchdog_period_is_the_managers(usec: str, seconds: float | None) -> None:
    """None: no watchdog."""
    assert Notifier({"WATCHDOG_USEC": usec}).watchdog_s == seconds


def test_the_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd sets it."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/absent")
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    assert (Notifier().enabled, Notifier().watchdog_s) == (True, 2.0)
