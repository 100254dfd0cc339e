"""Who waits is woken by others, also while it is closed."""

from __future__ import annotations

import os
import threading

import pytest

from pyprof.collectors.perf.waiter import Waiter


def test_waking_beside_closing_writes_to_nothing_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file might have the number by then."""
    waiter = Waiter()
    closing = threading.Thread(target=waiter.close)
    write = os.eventfd_write

    def late(fd: int, value: int) -> None:
        closing.start()
        closing.join(0.1)
        write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", late)
    waiter.wake()
    closing.join()
    waiter.wake()
