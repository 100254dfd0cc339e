"""Tests of the flush protocol between the owner of windows and the collector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collector_control import NEVER_NS, FlushProtocol
from pyprof.collectors.base import NOBODY
from pyprof.collectors.batch_builder import build_stackless_batch, split_at_flushes
from pyprof.model.arch import X86_64
from pyprof.model.sample_batch import SampleBatch, SampleKind


def test_samples_are_wanted_until_they_are_given() -> None:
    handover = FlushProtocol()
    handover.request_flush(100)
    handover.request_flush(200)
    assert handover.next_ns == 100
    assert not handover.acknowledge_flush(99)
    assert not handover.is_ready(100)
    assert handover.acknowledge_flush(150)
    assert handover.next_ns == 200
    assert handover.is_ready(100)
    assert not handover.is_ready(200)
    assert handover.acknowledge_flush(200)
    assert handover.next_ns == NEVER_NS
    assert not handover.acknowledge_flush(300), "nobody waits"


def test_window_waits_for_its_collector_however_late_that_is() -> None:
    handover = FlushProtocol()
    handover.request_flush(100)
    assert handover.bound(90) == 90
    assert handover.bound(10**15) == 100
    assert not handover.is_ready(100)
    handover.acknowledge_flush(handover.bound(10**15))
    assert handover.is_ready(100)
    assert handover.bound(10**15) == 10**15


def test_flush_that_is_requested_for_the_past_gives_no_time_twice() -> None:
    handover = FlushProtocol()
    handover.acknowledge_flush(500)
    handover.request_flush(400)
    assert handover.is_ready(400)
    assert handover.bound(600) == 500


def test_end_is_the_first_moment_at_which_it_was_set() -> None:
    handover = FlushProtocol()
    first = handover.end()
    assert handover.end() == first == handover.ended_ns


def test_collector_that_sleeps_is_woken_when_samples_are_wanted() -> None:
    handover, woken = FlushProtocol(), []
    handover.wake = lambda: woken.append(handover.next_ns)
    handover.request_flush(7)
    assert woken == [7]


def test_samples_wanted_again_and_again_are_due_after_each_handover() -> None:
    handover, woken = FlushProtocol(), []
    handover.wake = lambda: woken.append(handover.next_ns)
    assert not handover.acknowledge_flush(100)
    handover.flush_every(50)
    handover.flush_every(70)
    assert woken == [150, 150]
    assert not handover.acknowledge_flush(160), "nobody waits"
    assert handover.next_ns == 210
    handover.request_flush(170)
    assert handover.next_ns == 170
    assert handover.acknowledge_flush(170)
    assert handover.next_ns == 220


def samples(times: list[int]) -> SampleBatch:
    column = np.array(times, np.int64)
    return build_stackless_batch(
        X86_64, NOBODY, np.full(len(times), SampleKind.STOPPED, np.uint8), column, column, column
    )


@pytest.mark.parametrize("ended_ns", [0, 15])
def test_samples_from_after_the_end_belong_to_no_recording(ended_ns: int) -> None:
    handover = FlushProtocol()
    handover.limit_ns, handover.ended_ns = 20, ended_ns
    found = split_at_flushes(handover, [samples([10, 15, 20, 21, 30])], 40)
    assert [at for batch in found for at in batch.time_ns.tolist()] == [10, 15, 20][: 2 if ended_ns else 3]


@given(
    batches=st.lists(st.lists(st.integers(1, 60), max_size=8), min_size=1, max_size=6),
    delays=st.lists(st.integers(0, 400), min_size=6, max_size=6),
    ends=st.lists(st.integers(1, 2000), unique=True, max_size=8),
)
def test_each_window_has_the_samples_of_its_own_time_however_late_they_come(
    batches: list[list[int]], delays: list[int], ends: list[int]
) -> None:
    """Yield samples in order but late, and close windows between batches."""
    handover = FlushProtocol()
    for end in ends:
        handover.request_flush(end)
    wanted, now = sorted(ends), 0
    window: list[int] = []
    windows: list[tuple[int, list[int]]] = []
    taken: list[int] = []
    for gaps, delay in zip(batches, delays, strict=False):
        times = [now + sum(gaps[: n + 1]) for n in range(len(gaps))]
        now = max([now, *times]) + delay
        taken += times
        for batch in split_at_flushes(handover, [samples(times)], now):
            window += batch.time_ns.tolist()
            while wanted and handover.is_ready(wanted[0]):
                windows.append((handover.given_ns, window))
                window = []
                wanted.pop(0)
    assert [at for _, found in windows for at in found] + window == taken, "each sample once"
    begin = 0
    for end, found in windows:
        assert all(begin < at <= end for at in found)
        begin = end
    assert [end for end, _ in windows] == [end for end in sorted(ends) if end <= now]
