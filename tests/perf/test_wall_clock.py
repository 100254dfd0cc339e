"""Tests of wall-clock time from reported switches, without a kernel or process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pyprof.collectors.base import CollectorStats, Feedback, SampleSource
from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.collectors.context_switch_protocol import (
    BLOCKED,
    ENDED,
    I64,
    IN,
    PREEMPTED,
    Mask,
    SwitchBatch,
    SwitchSource,
    ThreadEvents,
)
from pyprof.collectors.linux.sampled_arch import WIDE
from pyprof.collectors.offcpu.wall_clock_collector import WallClockCollector
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.options import CollectOptions

MS = 1_000_000
PID, OTHER_PID = 500, 600

Switch = tuple[int, int, int]
"""(tid, milliseconds since the start of the source, kind) of a switch."""


def stopped(tids: list[int], times_ns: list[int], source_id: int) -> SampleBatch:
    tid = np.array(tids, np.int32)
    kind = np.zeros(len(tid), np.uint8)
    return build_stackless_batch(WIDE, source_id, kind, np.array(times_ns, np.int64), tid * 0 + PID, tid)


class Reported:
    """A SwitchSource that reports everything at once."""

    source_ids = frozenset((1, 2))
    flush_s = 0.1

    paused: frozenset[int] = frozenset()

    def __init__(self, switches: list[Switch], left: Sequence[tuple[int, int]] = ()) -> None:
        self.alive: list[int] = []
        self._switches = switches
        self._left = left

    def take_switches(self, now_ns: int) -> SwitchBatch:
        start = now_ns - 100 * MS
        tid, ms, kind = (np.array(column, np.int64) for column in zip(*self._switches, strict=True))
        left = stopped([tid for tid, _ in self._left], [start + ms * MS for _, ms in self._left], 2)
        switches = ThreadEvents(tid, start + ms * MS, kind)
        running = [stopped([7], [start], 1)]
        return SwitchBatch(running, left, np.zeros(len(left), np.bool_), switches, {}, [], frozenset())

    def release_switches(self) -> tuple[frozenset[int], int]:
        return frozenset(), 0

    def split_by_width(self, left: SampleBatch, narrow: Mask) -> list[SampleBatch]:
        return [left]

    def mask_recorded(self, pid: npt.NDArray[np.integer]) -> Mask:
        return np.ones(len(pid), np.bool_)

    def mask_shown(self, tid: npt.NDArray[np.integer], time_ns: I64) -> Mask:
        return np.ones(len(tid), np.bool_)

    def find_thread_ids(self, tid: npt.NDArray[np.integer], time_ns: I64) -> tuple[npt.NDArray[np.int32], I64]:
        return np.where(tid == 8, OTHER_PID, PID).astype(np.int32), np.zeros(len(tid), np.int64)

    def take_new_processes(self) -> set[int]:
        return set()

    def learn(self, feedback: Feedback) -> None: ...

    def retire(self) -> None: ...

    def threads(self) -> list[ThreadInfo]:
        return []

    def stats(self) -> CollectorStats:
        return CollectorStats(ticks=3, ticking_ns=5)

    def close(self) -> None: ...


class NoLooks:
    source_id = 3

    def __init__(self, last: Callable[[], None] = lambda: None) -> None:
        self._last = last

    def batches(self) -> Iterator[SampleBatch]:
        time.sleep(0.1)  # time that the source must report
        self._last()
        return iter(())

    def stop(self) -> None: ...

    def stats(self) -> CollectorStats:
        return CollectorStats(skipped=2)


def wall_clock(source: SwitchSource, **options: Any) -> WallClockCollector:
    return WallClockCollector(source, lambda _: cast("SampleSource", NoLooks()), CollectOptions(idle=True, **options))


def of_kind(batches: list[SampleBatch], kind: SampleKind) -> list[tuple[int, int, int]]:
    """Return (pid, tid, nanoseconds) of the samples of this kind that have a length."""
    found = []
    for batch in batches:
        if batch.length_ns is not None:
            rows = zip(batch.kind, batch.pid, batch.tid, batch.length_ns, strict=True)
            found += [(int(pid), int(tid), int(ns)) for each, pid, tid, ns in rows if each == kind]
    return sorted(found)


def test_time_that_nobody_saw_belongs_to_the_process_of_its_thread() -> None:
    switches = [(7, 10, BLOCKED), (7, 50, IN), (8, 20, BLOCKED), (8, 30, IN), (8, 31, ENDED)]
    batches = list(wall_clock(Reported(switches)).batches())
    assert of_kind(batches, SampleKind.UNSEEN) == [(PID, 7, 40 * MS), (OTHER_PID, 8, 10 * MS)]


def test_sample_of_a_leave_stands_for_the_time_until_its_thread_came_back() -> None:
    source = Reported([(7, 10, BLOCKED), (7, 50, IN), (7, 60, PREEMPTED), (7, 61, IN)], [(7, 10), (7, 60)])
    batches = list(wall_clock(source).batches())
    assert of_kind(batches, SampleKind.STOPPED) == [(PID, 7, MS), (PID, 7, 40 * MS)]
    assert of_kind(batches, SampleKind.UNSEEN) == []
    assert [batch.source_id for batch in batches if len(batch)] == [1, 2]


def test_time_before_the_first_batch_and_after_the_stop_is_nobodys() -> None:
    stopped: list[int] = []

    def stop() -> None:
        collector.stop()
        stopped.append(time.monotonic_ns())
        time.sleep(0.05)

    source = Reported([(7, -50, BLOCKED)], [(7, -50)])
    looks = cast("SampleSource", NoLooks(stop))
    began_ns = time.monotonic_ns()
    collector = WallClockCollector(source, lambda _: looks, CollectOptions(idle=True))
    batches = list(collector.batches())
    ((pid, tid, blocked_ns),) = of_kind(batches, SampleKind.STOPPED)
    assert (pid, tid) == (PID, 7)
    assert min(int(batch.time_ns.min()) for batch in batches if len(batch)) >= began_ns
    assert 100 * MS <= blocked_ns <= stopped[0] - began_ns


def test_off_cpu_time_alone_leaves_out_samples_of_what_ran_and_waits_for_a_processor() -> None:
    source = Reported([(7, 10, BLOCKED), (7, 50, IN), (7, 60, PREEMPTED), (7, 61, IN)], [(7, 10), (7, 60)])
    collector = wall_clock(source, running=False)
    batches = list(collector.batches())
    assert of_kind(batches, SampleKind.STOPPED) == [(PID, 7, 40 * MS)]
    assert [batch.source_id for batch in batches if len(batch)] == [2]
    assert (collector.stats().ticks, collector.stats().ticking_ns, collector.stats().skipped) == (3, 0, 2)
