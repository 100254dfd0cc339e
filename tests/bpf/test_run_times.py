"""Tests of sample weights by run time: each nanosecond that a thread ran counts once."""

from __future__ import annotations

import numpy as np
import pytest

from pyprof.collectors.bpf.kernel_program import WaitingThread
from pyprof.collectors.bpf.ring_buffer_records import FOREVER_NS
from pyprof.collectors.bpf.wall_clock_samples import UNKNOWN_NS, RunTimes

pytestmark = pytest.mark.system


def thread(tid: int, ran: int, on: int = 0) -> WaitingThread:
    return WaitingThread(tid, tid, 0, 0, 0, -1, False, 0, 0, 0, on, ran)


def share(times: RunTimes, tids: list[int], threads: list[WaitingThread], now: int) -> list[int]:
    found: list[int] = times.distribute_run_time(np.array(tids, np.int64), threads, now, {}, FOREVER_NS).tolist()
    return found


def test_time_that_was_read_too_late_counts_for_the_next_period() -> None:
    times = RunTimes()
    times.start_accounting(0, [thread(7, 0), thread(8, 0)])
    tids, late = np.array([7, 8], np.int64), [thread(7, 1500), thread(8, 1500)]
    assert times.distribute_run_time(tids, late, 1000, {8: 300}, 1000).tolist() == [1000, 300]
    assert times.distribute_run_time(tids, late, 2000, {}, 1000).tolist() == [500, 1000]


def test_samples_share_what_their_thread_ran() -> None:
    times = RunTimes()
    times.start_accounting(1000, [thread(7, 500), thread(8, 100, on=400)])
    assert share(times, [7, 8, 7], [thread(7, 1100), thread(8, 100, on=400)], 2000) == [300, 1000, 300]


def test_time_without_a_sample_counts_for_the_next_one() -> None:
    times = RunTimes()
    times.start_accounting(0, [thread(7, 0)])
    assert share(times, [], [thread(7, 40)], 1000) == []
    assert share(times, [7], [thread(7, 100)], 2000) == [100]
    assert share(times, [7], [thread(7, 130)], 3000) == [30]


def test_what_is_not_known_is_told_apart() -> None:
    times = RunTimes()
    times.start_accounting(0, [thread(7, 900)])
    again, fresh = thread(7, 20), thread(8, 50)  # the kernel has reused the first tid
    assert share(times, [7, 8, 9], [again, fresh], 1000) == [UNKNOWN_NS] * 3
    assert share(times, [7, 8, 9], [thread(7, 30), thread(8, 60)], 2000) == [10, 10, UNKNOWN_NS]
