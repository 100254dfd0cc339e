"""Tests of waiting for rings with wakeups from other threads, also during close."""

from __future__ import annotations

import os
import select
import threading

import pytest

from pyprof.collectors.perf.ring_buffer_polling import FIRST_FLUSH_NS, Cadence, Waiter, WatchTimes
from pyprof.options import CollectOptions

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_waking_beside_closing_writes_to_nothing_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close during a wakeup, when another file could already have the descriptor's number."""
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
    """Sleep after a wakeup. Windows wake a collector, which would otherwise keep a processor busy."""
    waiter = Waiter()
    for _ in range(2):
        waiter.wake()
        waiter.wake()
        assert is_ready(waiter)
        assert waiter.wait(1e9, ()) == []
        assert not is_ready(waiter)
    waiter.close()


def is_ready(waiter: Waiter) -> bool:
    poll = select.poll()  # select(2) is limited to descriptors up to 1,023
    poll.register(waiter._poll.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_an_alarm_that_rings_all_the_time_wakes_once_until_its_notice_is_cleared() -> None:
    """Wake once for many new mappings, because other processes of a busy machine map code all the time."""
    waiter = Waiter()
    alarm, ringer = os.pipe()
    waiter.add_alarms([alarm])
    assert not is_ready(waiter)
    for _ in range(2):
        os.write(ringer, b"!")
        assert is_ready(waiter)
        waiter.wait(1e9, ())
        assert waiter.notified
        os.write(ringer, b"!")
        assert not is_ready(waiter)
        os.read(alarm, 2)
        waiter.clear_notice()
        assert not waiter.notified
        assert not is_ready(waiter)
    os.write(ringer, b"!")
    waiter.wait(1e9, ())
    os.write(ringer, b"!")
    waiter.clear_notice()
    assert is_ready(waiter)  # a report between the wakeup and the reading is not missed
    waiter.close()
    os.close(alarm)
    os.close(ringer)


MS = 1_000_000
NEVER = 2**62


def watched_ms(had_news: list[bool], wakes: bool = True, notified: bool = False) -> list[int]:
    """Return the times at which process events are read, in milliseconds.

    Args:
        had_news: Whether each read finds events.
        wakes: Whether events wake the collector.
        notified: Whether events wake the collector all the time.
    """
    times, found = WatchTimes(CollectOptions(flush_s=0.5), wakes), list[int]()
    for now in range(10_000):
        if times.is_due(now * MS, notified) and len(found) < len(had_news):
            times.note_watch(now * MS, NEVER, had_news[len(found)])
            found.append(now)
    return found


def test_after_news_more_are_looked_for_later_and_later_and_then_not_any_more() -> None:
    assert watched_ms([True] + 99 * [False]) == [0, 10, 30, 70, 150, 310, 630, 1270, 2550]
    assert watched_ms([True, False, True, False]) == [0, 10, 30, 40]


def test_processes_that_start_all_the_time_are_looked_for_every_10_ms() -> None:
    assert watched_ms([True, True, True, True, True], notified=True) == [0, 10, 20, 30, 40]


def test_looks_without_a_result_become_rarer_until_one_finds_a_process() -> None:
    assert watched_ms([True, False, False, False, True, False], notified=True) == [0, 10, 30, 70, 110, 120]


def test_rings_without_wakeups_are_looked_at_every_10_to_40_ms() -> None:
    assert watched_ms([True, False, False, False, True, False], wakes=False) == [0, 10, 30, 70, 110, 120]


def test_news_that_come_after_a_quiet_time_are_looked_at_at_once() -> None:
    times = WatchTimes(CollectOptions(flush_s=0.5), wakes=True)
    for now in range(0, 10_000 * MS, 10 * MS):
        if times.is_due(now, notified=False):
            times.note_watch(now, NEVER, found=False)
    assert not times.is_due(20_000 * MS, notified=False)
    assert times.is_due(20_000 * MS, notified=True)


@pytest.mark.parametrize(
    ("flush_s", "rate_hz", "hold_s", "most_s"),
    [
        (0.5, 99, 0.0, 4.0),
        (0.5, 99, 8.0, 8.0),
        (0.5, 99, 16.0, 8.0),
        (0.5, 40, 16.0, 10.0),
        (0.5, 19, 16.0, 16.0),
        (0.1, 99, 16.0, 3.2),
        (1.0, 99, 8.0, 8.0),  # the agent flushes every 8 s
        (2.0, 99, 8.0, 16.0),
        (0.5, 1000, 16.0, 2.0),
        (0.0, 99, 8.0, 0.0),
    ],
)
def test_samples_wait_for_others_longer_and_longer(
    flush_s: float, rate_hz: float, hold_s: float, most_s: float
) -> None:
    cadence = Cadence(CollectOptions(rate_hz=rate_hz, flush_s=flush_s), hold_s)
    waits = []
    for _ in range(20):
        waits.append(cadence.wait_ns)
        cadence.note_flush(50_000_000)
    assert waits == sorted(waits) or not flush_s
    assert cadence.wait_ns == pytest.approx(most_s * 1e9, abs=1)


@pytest.mark.parametrize(("share", "most_s"), [(0.001, 8.0), (0.05, 4.0), (0.5, 1.0), (2.0, 1.0)])
def test_batches_are_no_longer_than_what_the_end_of_a_recording_may_take(share: float, most_s: float) -> None:
    """Check the length of batches for walks that take a given share of a processor.

    A batch is never shorter than flush_s if the walks keep up at all.
    """
    cadence = Cadence(CollectOptions(rate_hz=99, flush_s=1.0), 8.0)
    for _ in range(60):
        cadence.note_flush(round(share * cadence.wait_ns))
    assert cadence.wait_ns == pytest.approx(most_s * 1e9, rel=0.01)


def test_samples_wait_for_a_short_time_again_after_a_restart() -> None:
    cadence = Cadence(CollectOptions(rate_hz=499, flush_s=0.5), 16.0)
    for _ in range(10):
        cadence.note_flush(1_000_000)
    cadence.restart()
    assert cadence.wait_ns == FIRST_FLUSH_NS
    cadence.note_flush(1_000_000)
    assert cadence.wait_ns == 2 * FIRST_FLUSH_NS


def test_wait_after_a_restart_has_room_for_some_samples_at_a_low_rate() -> None:
    cadence = Cadence(CollectOptions(rate_hz=19, flush_s=1.0), 16.0)
    assert cadence.wait_ns == FIRST_FLUSH_NS
    for _ in range(10):
        cadence.note_flush(1_000_000)
    cadence.restart()
    assert cadence.wait_ns == pytest.approx(4e9 / 19)
