"""Tests of checking and sampling a subset of threads: on average each thread has the time for which it ran."""

from __future__ import annotations

import math
import random
from typing import Any, cast

import pytest

from pyprof.collectors.linux.procfs import ProcDir
from pyprof.collectors.ptrace.sampled_process import (
    MAX_QUIET_CHECKS,
    MIN_SUBSAMPLED_THREADS,
    QUIET_AFTER_CHECKS,
    QUIET_INTERVAL,
    USUAL_THREADS,
    IdleSubsampling,
)
from pyprof.collectors.ptrace.sampled_thread import StackShape, Thread
from pyprof.model.arch import X86_64

pytestmark = [pytest.mark.live, pytest.mark.system]

MS = 1_000_000


def thread(tid: int = 1) -> Thread:
    return Thread(1, tid, cast("ProcDir", None), StackShape(4096), X86_64)


def looked(rounds: IdleSubsampling, threads: list[Thread], awake: set[int]) -> dict[int, int]:
    """Run one round in which the awake threads are found running, and return the weight of each checked thread."""
    found = {}
    for each, weight in rounds.choose_threads(threads):
        found[each.tid] = weight
        each.asleep_checks = 0 if each.tid in awake else each.asleep_checks + 1
    return found


def test_few_threads_are_all_looked_at() -> None:
    threads = [thread(tid) for tid in range(MIN_SUBSAMPLED_THREADS - 1)]
    rounds = IdleSubsampling(random.Random(1).random)
    for _ in range(3 * QUIET_AFTER_CHECKS):
        assert looked(rounds, threads, set()) == dict.fromkeys(range(MIN_SUBSAMPLED_THREADS - 1), 1)


def test_quiet_threads_are_looked_at_now_and_then_and_count_for_the_rounds_between() -> None:
    threads = [thread(tid) for tid in range(300)]
    rounds = IdleSubsampling(random.Random(2).random)
    for _ in range(3 * QUIET_AFTER_CHECKS):
        looked(rounds, threads, {7})
    weights = dict.fromkeys(range(300), 0)
    looks = 0
    for _ in range(4000):
        found = looked(rounds, threads, {7})
        assert found[7] == 1
        looks += len(found)
        for tid, weight in found.items():
            weights[tid] += weight
    assert looks < 4000 * (1 + 300 / QUIET_INTERVAL + 1)
    assert all(3200 < weight < 4800 for weight in weights.values())


def test_few_of_thousands_of_idle_threads_are_checked_and_times_are_right() -> None:
    threads = [thread(tid) for tid in range(5000)]
    rounds = IdleSubsampling(random.Random(5).random)
    first = sum(len(looked(rounds, threads, {7})) for _ in range(QUIET_AFTER_CHECKS))
    assert first < 4 * len(threads)  # new threads are checked every round, but not QUIET_AFTER_CHECKS times
    weights = dict.fromkeys(range(5000), 0)
    looks = 0
    for _ in range(2000):
        found = looked(rounds, threads, {7})
        assert found[7] == 1
        looks += len(found)
        for tid, weight in found.items():
            weights[tid] += weight
    assert looks < 2000 * 1.2 * MAX_QUIET_CHECKS
    assert len(threads) > USUAL_THREADS
    every = len(threads) // MAX_QUIET_CHECKS
    for tid in set(weights) - {7}:  # each weight is `every` with probability 1 / `every`
        assert abs(weights[tid] - 2000) < 6 * every * math.sqrt(2000 / every)


def test_quiet_thread_that_is_found_running_is_looked_at_in_each_round() -> None:
    threads = [thread(tid) for tid in range(200)]
    rounds = IdleSubsampling(random.Random(3).random)
    for _ in range(3 * QUIET_AFTER_CHECKS):
        looked(rounds, threads, set())
    while 9 not in looked(rounds, threads, {9}):
        pass
    assert all(looked(rounds, threads, {9})[9] == 1 for _ in range(100))


def test_threads_that_come_and_go_are_looked_at_at_once() -> None:
    threads = [thread(tid) for tid in range(100)]
    rounds = IdleSubsampling(random.Random(4).random)
    for _ in range(3 * QUIET_AFTER_CHECKS):
        looked(rounds, threads, set())
    threads = [*threads[10:], thread(1000), *(thread(tid) for tid in range(2000, 2009))]
    found = looked(rounds, threads, set())
    assert {1000, *range(2000, 2009)} <= found.keys()
    assert not found.keys() & set(range(10))


@pytest.mark.parametrize(("ran", "waited", "share"), [(10, 0, 1.0), (2, 8, 0.2), (5, 5, 0.5), (19, 1, 1.0)])
def test_thread_is_sampled_as_often_as_it_had_a_processor(ran: int, waited: int, share: float) -> None:
    one = thread()
    at: Any = [0, 0]
    taken = 0
    for look in range(1100):
        at = [at[0] + ran * MS, at[1] + waited * MS]
        due = one.share.is_due(b"%d %d 5\n" % tuple(at))
        taken += due and look >= 100
    assert taken == pytest.approx(1000 * share, abs=2)
