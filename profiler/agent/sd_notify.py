"""Notifications for systemd (sd_notify(3)): READY, RELOADING, STATUS, STOPPING, WATCHDOG. Without it none is sent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Set
from contextlib import suppress


class Notifier:
    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        usec = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every = int(usec) / 2e6 if usec.isascii() and usec.isdigit() and mine else 0.0
        self._next = 0.0
        self._reported = frozenset[str]()

    def send(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(1.0)
                out.sendto(state.encode(), self._address)

    def reloading(self) -> None:
        self.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def report(self, reasons: Set[str]) -> None:
        """Send the names of the agent's conditions that hold to systemd, for `systemctl status`, if they have
        changed.
        """
        if reasons != self._reported:
            self._reported = frozenset(reasons)
            self.send(f"STATUS={'failing: ' if reasons else 'ok'}{', '.join(sorted(reasons))}")

    def alive(self) -> None:
        """Notify systemd's watchdog if that is due; callers call this more often."""
        if self._every and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.send("WATCHDOG=1")
