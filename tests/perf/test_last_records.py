"""Tests of the time that threads ran after their last record.

Lifetimes are synthetic: (start, records, end) in nanoseconds.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pyprof.collectors.linux.process_cpu_times import TICK_NS
from pyprof.collectors.perf.ring_buffer_records import EXIT, FORK, TID, TIME, OtherRecord, Scan
from pyprof.collectors.perf.time_after_last_record import LastRecords

pytestmark = [pytest.mark.live, pytest.mark.system]

PERIOD = 1000
WORDS = 8
Lives = list[tuple[int, list[int], int]]


def task(kind: int, time_ns: int, pid: int, tid: int) -> OtherRecord:
    return OtherRecord(kind, 0, time_ns, struct.pack("=IIIIQ", pid, 1, tid, 1, time_ns))


def looked(lives: Lives, process: int = 0) -> LastRecords:
    """Return the last records of these lifetimes.

    Args:
        lives: (start, times of records, end) of each task.
        process: Process of all threads, or 0 if each is a process.
    """
    records = LastRecords()
    found, samples = Scan(), [(at, 100 + n) for n, (_, times, _) in enumerate(lives) for at in times]
    words = np.zeros(WORDS * max(len(samples), 1), np.uint64)
    for n, (at, tid) in enumerate(samples):
        words[WORDS * n + TID], words[WORDS * n + TIME] = tid << 32, at
    found.samples = [WORDS * np.arange(len(samples))] if samples else []
    for n, (born, _, ended) in enumerate(lives):
        pid = process or 100 + n
        found.others += [task(FORK, born, pid, 100 + n)] if born else []
        found.others += [task(EXIT, ended, pid, 100 + n)]
    found.others.sort(key=lambda record: record.time_ns)
    records.add_records(found, words, PERIOD)
    return records


def test_gaps_shorter_than_a_period_are_missing_but_for_the_way_out() -> None:
    lives: Lives = [(1, [1001, 2001], 2001 + gap) for gap in (50, 450, 850)]
    assert looked(lives).estimate_endings(0).missing_ns == 400 + 800


def test_life_that_was_in_the_kernel_at_its_end_misses_nothing() -> None:
    assert looked([(1, [1001], 2001), (1, [1001], 9000)]).estimate_endings(0).missing_ns == 0


@pytest.mark.parametrize(("times", "part"), [([2000, 3000, 4000, 5000], 1.0), ([2000, 3000], 0.5)])
def test_life_shorter_than_a_period_was_in_user_space_as_the_longer_ones_were(times: list[int], part: float) -> None:
    longer: Lives = [(1000, times, 5000)]
    assert looked([*longer, (1, [], 801)]).estimate_endings(0).missing_ns == round(800 * part)


def test_time_of_lost_records_is_missing() -> None:
    assert looked([]).estimate_endings(3 * PERIOD).missing_ns == 3 * PERIOD


def test_cpu_time_is_inexact_for_short_processes_and_exact_for_threads() -> None:
    lives: Lives = [(1, [], TICK_NS), (1, [], TICK_NS + 1), (0, [], TICK_NS // 2)]
    assert looked(lives).estimate_endings(0).inexact_ns == TICK_NS - 1
    assert looked(lives, process=7).estimate_endings(0).inexact_ns == 0
