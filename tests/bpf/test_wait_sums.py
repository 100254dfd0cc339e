"""Tests of the accounting of waits: each nanosecond counts once, also if records are lost or late."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.bpf.kernel_program import WaitingThread
from pyprof.collectors.bpf.locks_and_wakers import LockWaits
from pyprof.collectors.bpf.ring_buffer_records import Flag, WaitEnds
from pyprof.collectors.bpf.samples_from_ring import WaitRates
from pyprof.collectors.bpf.wait_durations import (
    FOREVER_NS,
    ContinuedWait,
    StacklessWait,
    SwitchOut,
    Waits,
    WaitTimes,
    rebuild_table,
    state_letter,
)
from pyprof.model.marker_frames import NOT_ONE_BY_ONE

S = 1
TID = 7
US = 1000


def left(*times: int, why: int = S) -> SwitchOut:
    n = len(times)
    return SwitchOut(np.full(n, TID), np.array(times, np.int64), np.full(n, why, np.uint32), np.ones(n, np.bool_))


def ended(*rows: tuple[int, int, int], flags: int = Flag.ENDED, blocked: int = 0, why: int = S) -> WaitEnds:
    """Return ended waits.

    Args:
        rows: (start of the wait, wakeup, end) of each wait in nanoseconds.
        flags: Flags of all waits.
        blocked: Address of the function in which the thread is blocked.
        why: The kernel's task state.
    """
    n = len(rows)
    off, waking, ran = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if n else [np.zeros(0, np.int64)] * 3
    )
    word, narrow = np.zeros(n, np.int64), np.full(n, TID, np.int32)
    some = np.full(n, why, np.uint32)
    nobody = (word, narrow * 0, narrow * 0, narrow * 0, np.zeros(n, "S16"))
    flag = np.full(n, flags, np.uint32)
    return WaitEnds(ran, narrow, narrow, flag, off, waking, some, narrow * 0, word + blocked, word, *nobody)


def waiting(off: int, waking: int = 0, blocked: int = 0, copied: bool = True) -> list[WaitingThread]:
    return [WaitingThread(TID, TID, off, waking, S, -1, copied, blocked, 0, 1, 0, 0)]


NONE = ended()


def total(times: WaitTimes) -> int:
    lanes = int(times.blocked_ns.sum() + times.runnable_ns.sum())
    return lanes + sum(each.ns for each in times.continued) + sum(each.ns for each in times.stackless)


def test_wait_with_its_stack_and_its_end_is_accounted_at_once() -> None:
    times = Waits().account_until(left(100), ended((100, 800, 900)), waiting(0), (), 1000, 0)
    assert times.blocked_ns.tolist() == [700]
    assert times.runnable_ns.tolist() == [100]
    assert total(times) == 800


def test_wait_that_goes_on_is_accounted_in_parts() -> None:
    waits = Waits()
    first = waits.account_until(left(100), NONE, waiting(100), (), 1000, 0)
    second = waits.account_until(left(), NONE, waiting(100), (), 3000, 0)
    third = waits.account_until(left(), ended((100, 3500, 3600)), waiting(0), (), 4000, 0)
    assert first.blocked_ns.tolist() == [900]
    assert second.continued == [ContinuedWait(TID, 1000, 2000)]
    assert total(third) == 600
    assert not total(waits.account_until(left(), NONE, waiting(0), (), 5000, 0))


def test_long_time_for_a_processor_is_not_the_wait_before_it() -> None:
    waits = Waits()
    waits.account_until(left(100), NONE, waiting(100), (), 1000, 0)
    times = waits.account_until(left(), ended((100, 50 * US, 90 * US)), waiting(0), (), 100 * US, 0)
    assert times.continued == [ContinuedWait(TID, 1000, 49 * US, 0), ContinuedWait(TID, 50 * US, 40 * US, woken=True)]
    assert not times.stackless


def test_wait_without_a_stack_is_accounted_while_it_lasts_and_at_its_end() -> None:
    waits = Waits()
    first = waits.account_until(left(), NONE, waiting(100, copied=False), (), 5000, 1000)
    second = waits.account_until(left(), ended((100, 7000, 7000)), waiting(0), (), 8000, 1000)
    assert [each.state for each in (*first.stackless, *second.stackless)] == ["S", "S"]
    assert total(first) + total(second) == 6900
    assert not total(Waits().account_until(left(), NONE, waiting(4500, copied=False), (), 5000, 1000))


def test_sums_are_accounted_as_they_grow_and_at_the_end_of_the_thread() -> None:
    waits = Waits()
    at = ((1000, 300), (2000, 300), (3000, 500))
    times = [waits.account_until(left(), NONE, waiting(0, blocked=ns), (), now, 0) for now, ns in at]
    assert [total(each) for each in times] == [300, 0, 200]
    assert times[0].stackless[0].call == NOT_ONE_BY_ONE
    gone = waits.account_until(left(), ended((0, 0, 3500), flags=Flag.GONE, blocked=600), [], (), 4000, 0)
    assert total(gone) == 100


def test_wait_whose_end_found_no_room_is_in_the_sums_and_not_accounted_twice() -> None:
    waits = Waits()
    times = [waits.account_until(left(100), NONE, waiting(100), (), 1000, 0)]
    times += [waits.account_until(left(), NONE, waiting(0, blocked=5000), (), 7000 + n, 0) for n in range(3)]
    times.append(waits.account_until(left(), NONE, waiting(0, blocked=7000), (), 10000, 0))
    assert sum(map(total, times)) == 7000


def test_end_that_comes_late_is_taken() -> None:
    waits = Waits()
    times = [waits.account_until(left(100), NONE, waiting(0), (), 1000, 0)]
    assert times[0].continues.tolist() == [True]
    times.append(waits.account_until(left(), ended((100, 900, 900)), waiting(0), (), 2000, 0))
    assert [total(each) for each in times] == [0, 800]
    assert times[1].continued == [ContinuedWait(TID, 100, 800, 0)]


def test_thread_that_sleeps_from_before_is_accounted_from_the_beginning_on() -> None:
    waits = Waits()
    waits.note_threads([TID], 50)
    waits.start_at(100, [])
    seen = waits.account_until(left(), NONE, [], [TID], 1000, 0)
    assert seen.asleep_ns == {TID: 900}
    assert waits.account_until(left(), NONE, [], (), 2000, 0).continued == [ContinuedWait(TID, 1000, 1000)]
    woke = waits.account_until(left(), ended((0, 0, 2500)), waiting(0), (), 3000, 0)
    assert total(woke) == 500


def test_thread_that_woke_before_it_was_looked_at_has_slept_until_then() -> None:
    waits = Waits()
    waits.note_threads([TID], 50)
    waits.start_at(100, [])
    times = waits.account_until(left(), ended((0, 0, 700)), waiting(0), [TID], 1000, 0)
    assert times.stackless == [StacklessWait(TID, 50, 600, "B", -1)]
    assert not times.asleep_ns


def test_nothing_is_accounted_of_the_time_before_and_after() -> None:
    waits = Waits()
    waits.start_at(500, waiting(0, blocked=77))
    waits.stop_at(2000)
    times = waits.account_until(left(100, 1500), ended((100, 900, 900)), waiting(1500, blocked=77), (), 9000, 0)
    assert times.blocked_ns.tolist() == [400, 500]
    assert not times.stackless
    assert FOREVER_NS > 2000


def test_room_to_run_is_what_waits_leave_of_the_time_since_the_last_call() -> None:
    waits = Waits()
    waits.start_at(0, [])
    assert waits.account_until(left(100), NONE, waiting(100), (), 1000, 0, cuts=False).room_ns == {TID: 1000}
    times = waits.account_until(left(), ended((100, 1400, 1400)), waiting(0), (), 2000, 0, cuts=False)
    assert total(times) == 1300
    assert times.room_ns == {TID: 600}


def test_states_of_tasks_have_the_letters_of_proc() -> None:
    assert [state_letter(why) for why in (0, 1, 2, 0x102, 0x402, 4, 8, 0x2001, 0x800)] == list("PSDDITtSB")


def test_threshold_falls_where_it_is_quiet_and_rises_where_waits_are_many() -> None:
    rates = WaitRates(1_000_000, clock=iter(range(0, 2_000_000_000, 100_000_000)).__next__)
    assert [rates.adjust_limits(1, 1, 0.0) and rates.least_ns for _ in range(6)] == [
        500_000,
        250_000,
        125_000,
        62_500,
        31_250,
        20_000,
    ]
    for _ in range(4):
        rates.adjust_limits(10_000, 10_000, 0.0)
    assert rates.least_ns > 300_000
    share = rates.share
    assert rates.adjust_limits(0, 0, 0.5)
    assert rates.share == 4 * share > 32


GAPS = st.integers(1, 400)


@given(
    gaps=st.lists(st.tuples(GAPS, GAPS, st.integers(0, 400)), min_size=1, max_size=20),
    flushes=st.lists(st.tuples(GAPS, st.integers(0, 2000), st.booleans()), min_size=1, max_size=12),
    has_stacks=st.booleans(),
    are_locks=st.booleans(),
)
def test_each_window_has_the_waits_of_its_own_time_however_late_it_is_read(
    gaps: list[tuple[int, int, int]], flushes: list[tuple[int, int, bool]], has_stacks: bool, are_locks: bool
) -> None:
    """Check that the sum of each window is exact for random waits and flushes.

    Args:
        gaps: Nanoseconds that the thread ran before a wait, slept, and waited for a processor.
        flushes: Nanoseconds since the last flush, the delay until the kernel's table and ring are read, and whether
            the flush ends a window. If it does not, waits that continue are accounted later.
        has_stacks: Whether waits have stacks.
        are_locks: Whether a wait that no thread ended is joined with the next one.
    """
    rows, now = [], 0
    for ran, slept, runnable in gaps:
        rows.append((now + ran, now + ran + slept, now + ran + slept + runnable))
        now = rows[-1][2]
    waits, locks, before, start, found = Waits(), LockWaits(lambda pid: ()), 0, 0, 0
    waits.start_at(before, [])
    for passed, delay, cuts in flushes:
        until = before + passed
        read = until + delay
        begun = [off for off, _, _ in rows if before < off <= until]
        over = [row for row in rows if before < row[2] <= until]
        later = [row for row in rows if until < row[2] <= read]
        off, waking = next(((off, waking) for off, waking, on in rows if off <= read < on), (0, 0))
        table = waiting(off, waking if waking <= read else 0, copied=has_stacks)
        stacks, table = left(*begun if has_stacks else ()), rebuild_table(table, ended(*later), until)
        times = waits.account_until(stacks, ended(*over), table, (), until, 0, cuts=cuts)
        if are_locks:
            locks.merge_continued_waits(times, ended(*over), cuts)
        found, before = found + total(times), until
        if cuts:
            assert found == sum(max(min(on, until) - max(off, start), 0) for off, _, on in rows)
            found, start = 0, until
