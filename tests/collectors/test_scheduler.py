"""Tests of the times at which threads are stopped, on a simulated clock."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from pyprof.collectors.ptrace import sampling_schedule_and_wall_time
from pyprof.collectors.ptrace.sampling_schedule_and_wall_time import Scheduler
from pyprof.options import CollectOptions


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 0
        monkeypatch.setattr(
            sampling_schedule_and_wall_time, "time", SimpleNamespace(monotonic_ns=lambda: self.ns, sleep=self.sleep)
        )

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def nobody(most_ns: int) -> bool:
    return False


@pytest.mark.parametrize("rate_hz", [0.1, 0.5, 1, 3])
def test_signs_of_life_cost_no_sampling_time(clock: Clock, rate_hz: float) -> None:
    timing = Scheduler(CollectOptions(rate_hz=rate_hz, flush_s=0.1))
    signs = 0
    while clock.ns < 20e9 / rate_hz:
        if timing.wait(nobody):
            timing.count_rounds()
        else:
            signs += 1
        timing.note_flush(samples=False)
    assert timing.ticks == pytest.approx(20, abs=1)
    assert timing.slots == (timing.ticks, 0)
    assert signs > timing.ticks


def test_who_is_late_is_looked_after_in_place_of_sleep(clock: Clock) -> None:
    timing = Scheduler(CollectOptions(rate_hz=100))
    waits: list[int] = []

    def late(most_ns: int) -> bool:
        waits.append(most_ns)
        clock.ns += most_ns
        return True

    for _ in range(20):  # one random wait may be shorter than a millisecond
        assert timing.wait(late)
    assert sum(waits) > 50e6
    assert max(waits) < 1e6


def test_stop_ends_the_wait(clock: Clock) -> None:
    timing = Scheduler(CollectOptions(rate_hz=1))

    def stopping(most_ns: int) -> bool:
        timing.stopping = True
        return True

    assert not timing.wait(stopping)


def batches(timing: Scheduler, clock: Clock, seconds: float) -> list[int]:
    """Return the age of the oldest sample of each batch in nanoseconds, for threads that always run."""
    waits, end, before = [], clock.ns + seconds * 1e9, clock.ns
    while clock.ns < end:
        if timing.wait(nobody) and timing.is_flush_due:
            waits.append(clock.ns - before)
            before = clock.ns
            timing.note_flush(samples=True)
    return waits


def test_batches_come_at_once_at_first_and_then_wait_for_more_samples(clock: Clock) -> None:
    waits = batches(Scheduler(CollectOptions(rate_hz=1000, flush_s=0.5)), clock, 20)
    assert waits[0] < 3e6
    assert 20e6 <= waits[1] < 25e6
    assert 4e9 <= waits[-1] < 4.01e9


def test_what_is_new_and_sleepers_wait_no_longer_than_they_must(clock: Clock) -> None:
    timing = Scheduler(CollectOptions(rate_hz=1000, flush_s=0.5))
    batches(timing, clock, 20)
    timing.note_flush(samples=False)
    timing.limit_wait()
    waits = batches(timing, clock, 10)
    assert 0.5e9 <= waits[0] < 0.51e9
    assert 4e9 <= waits[-1] < 4.01e9
    sleepers = Scheduler(CollectOptions(rate_hz=1000, flush_s=0.5, idle=True))
    assert max(batches(sleepers, clock, 20)) < 0.51e9


def test_samples_whose_walk_takes_long_wait_less(clock: Clock) -> None:
    """Flush more often if walks are slow. Otherwise the end of a recording would wait for a walk of several seconds."""
    timing = Scheduler(CollectOptions(rate_hz=1000, flush_s=0.5))
    batches(timing, clock, 20)
    timing.note_flush(samples=True)
    timing.note_walk(sampled_ns=4_000_000_000, took_ns=400_000_000)
    assert 1e9 <= batches(timing, clock, 10)[-1] < 1.01e9
    timing.note_walk(sampled_ns=1_000_000_000, took_ns=2_000_000_000)
    assert 0.5e9 <= batches(timing, clock, 10)[-1] < 0.51e9
    timing.note_walk(sampled_ns=500_000_000, took_ns=0)
    timing.note_walk(sampled_ns=500_000_000, took_ns=1_000_000)
    assert 4e9 <= batches(timing, clock, 20)[-1] < 4.01e9


def test_who_waits_for_samples_sees_signs_of_life(clock: Clock) -> None:
    timing = Scheduler(CollectOptions(rate_hz=1000, flush_s=0.5))
    batches(timing, clock, 10)
    timing.note_flush(samples=True)
    signs = []
    while not timing.is_flush_due:
        assert timing.wait(nobody)
        if timing.is_sign_due:
            signs.append(clock.ns)
            timing.note_empty_batch()
    assert 7 <= len(signs) <= 8
    assert max(after - before for before, after in itertools.pairwise(signs)) < 0.51e9


def test_who_is_late_sleeps_before_it_looks(clock: Clock) -> None:
    """Sleep before a late round, in which the sampler would otherwise find the threads that it displaced itself."""
    timing = Scheduler(CollectOptions(rate_hz=1000))
    rested = []
    for late_ns in [0, 300_000, 700_000, 990_000, 5_000_000] * 20:
        clock.ns += late_ns
        before = clock.ns
        assert timing.wait(nobody)
        rested.append(clock.ns - before)
        timing.count_rounds()
    assert min(rested) >= 50_000
    assert timing.skipped > 50
