"""Who waits is woken by others, also while it is closed."""

from __future__ import annotations

import os
import select
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


def test_who_was_woken_sleeps_the_next_time() -> None:
    """Windows wake a collector: one that then never slept again would take a whole processor."""
    waiter = Waiter()
    for _ in range(2):
        waiter.wake()
        waiter.wake()
        assert is_ready(waiter)
        assert waiter.wait(1e9, ()) == []
        assert not is_ready(waiter)
    waiter.close()


def is_ready(waiter: Waiter) -> bool:
    poll = select.poll()  # select(2) knows no descriptor above 1,023
    poll.register(waiter._poll.fileno(), select.POLLIN)
    return bool(poll.poll(0))
