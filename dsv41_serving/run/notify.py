"""Talk to systemd through sd_notify(3), or do nothing where no NOTIFY_SOCKET is set."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class Notifier:
    """One service's line to systemd."""

    def __init__(self, environ: dict[str, str] | None = None) -> None:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC from `environ` (this process's by default)."""
        source = os.environ if environ is None else environ
        self._address = source.get("NOTIFY_SOCKET", "")
        usec = source.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() else None

    @property
    def enabled(self) -> bool:
        """Whether a service manager listens."""
        return bool(self._address)

    def status(self, text: str) -> None:
        """Set the line `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def ready(self, text: str) -> None:
        """Say that the gate has passed."""
        self._send(f"READY=1\nSTATUS={text}")

    def extend_start(self, seconds: float) -> None:
        """Ask for `seconds` more from now: loading has made progress."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def stopping(self, text: str) -> None:
        """Say that the service is on its way down."""
        self._send(f"STOPPING=1\nSTATUS={text}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # An address that begins with '@' is in the abstract namespace, written with a leading NUL.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            # A manager that is restarting itself does not listen for a moment: no reason to end what it manages.
            channel.sendto(message.encode(), address)
