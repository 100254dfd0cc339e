"""Who waits is woken by others, also while it is closed."""

from __future__ import annotations

import os
import select
import threading

import pytest

from pyprof.collectors.perf.waiter import Waiter, WatchTimes
from pyprof.options import CollectOptions


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


MS = 1_000_000
NEVER = 2**62


def watched_ms(vain: list[int], wakes: bool = True) -> list[int]:
    """When news are looked at, while a record comes each millisecond. vain: what each look says."""
    times, found = WatchTimes(CollectOptions(flush_s=0.5), wakes), list[int]()
    for now in range(1000):
        if times.due(now * MS, notified=wakes) and len(found) < len(vain):
            times.watched(now * MS, NEVER, vain[len(found)])
            found.append(now)
    return found


def test_records_of_other_programs_are_looked_at_more_and_more_seldom() -> None:
    assert watched_ms([1, 2, 3, 4, 5, 6]) == [0, 20, 60, 140, 220, 300]


def test_records_of_the_recording_are_looked_at_soon_again() -> None:
    assert watched_ms([3, 4, 0, 0, 1]) == [0, 80, 160, 170, 180]


def test_rings_that_wake_nobody_are_looked_at_all_the_time() -> None:
    assert watched_ms([1, 2, 3, 4], wakes=False) == [0, 10, 20, 30]


def test_record_that_comes_after_a_quiet_time_is_looked_at_at_once() -> None:
    times = WatchTimes(CollectOptions(flush_s=0.5), wakes=True)
    times.watched(0, NEVER, 9)
    assert not times.due(200 * MS, notified=False)
    assert times.due(200 * MS, notified=True)
