"""Tests of off-CPU time from switch records, samples and /proc: reported times equal the true ones."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.context_switch_protocol import BLOCKED, ENDED, IN, PREEMPTED, ThreadEvents
from pyprof.collectors.offcpu.interval_attribution import BY_WEIGHT, DrainState, OffCpuIntervals

pytestmark = [pytest.mark.live, pytest.mark.system]

MS = 1_000_000
Moment = tuple[int, int, int]
"""(tid, time in nanoseconds, kind or place) of an event."""


def points(moments: list[Moment]) -> ThreadEvents:
    columns = np.array(moments, np.int64).reshape(-1, 3)
    return ThreadEvents.make_points(columns[:, 0], columns[:, 1], columns[:, 2])


@dataclass
class World:
    """A simulation of threads whose behaviour depends on a seed, and of the events that they cause.

    Attributes:
        truth: True nanoseconds by (tid, place, blocked). A place is where the thread waits, in place of a stack.
        result: Reported nanoseconds by (tid, place, blocked).
    """

    seed: int
    period: int = 1
    looks_ms: float = 10.0
    scale_ms: tuple[float, float] = (0.02, 40.0)
    threads: int = 4
    seconds: float = 3.0
    truth: dict[tuple[int, int, bool], int] = field(default_factory=lambda: defaultdict(int))
    result: dict[tuple[int, int, bool], int] = field(default_factory=lambda: defaultdict(int))
    off: dict[int, list[tuple[int, int, int, bool]]] = field(default_factory=lambda: defaultdict(list))

    def play(self, drain_ms: float = 100, gaps: list[tuple[int, int]] | None = None) -> World:
        draw = random.Random(self.seed)
        end = round(self.seconds * 1e9)
        records: list[Moment] = []
        samples: list[Moment] = []
        leaves = 0
        for tid in range(1, self.threads + 1):
            at, asleep = 0, tid % 2
            while at < end:
                low, high = self.scale_ms
                length = round(low * MS * (high / low) ** draw.random())
                if asleep:
                    place, blocked = draw.randrange(3), draw.random() < 0.8
                    self.off[tid].append((at, min(at + length, end), place, blocked))
                    self.truth[tid, place, blocked] += min(at + length, end) - at
                    if at:  # earlier switches have no record
                        leaves += 1
                        if leaves % self.period == 0:
                            samples.append((tid, at - 2000, place))
                        records.append((tid, at, BLOCKED if blocked else PREEMPTED))
                    if at + length < end:
                        records.append((tid, at + length, IN))
                at += length
                asleep = not asleep
        spent = OffCpuIntervals(True, 0, round(2.5 * self.looks_ms * MS))
        spent.add_threads(dict.fromkeys(range(1, self.threads + 1), 0))
        known: dict[int, int] = {}
        drains = [*range(round(drain_ms * MS), end, round(drain_ms * MS)), end]
        since = 0
        for now in drains:
            seen = [
                (tid, at, place)
                for at in range(since, now, round(self.looks_ms * MS))
                for tid, each in self.off.items()
                for start, stop, place, blocked in each
                if start <= at < stop and blocked
            ]
            inside = [gap for gap in gaps or () if gap[0] < now and gap[1] > since]
            taken = [r for r in records if since <= r[1] < now and not any(a <= r[1] < b for a, b in gaps or ())]
            mine = [s for s in samples if since <= s[1] < now and not any(a <= s[1] < b for a, b in gaps or ())]
            result = spent.attribute(
                points(taken), points(mine), points(seen), now, DrainState(gaps=inside, ends_window=now == end)
            )
            order = [(tid, ns) for tid, _, ns in result.carried]
            for tid, ns in order:
                self.result[tid, known[tid], True] += ns
            for (tid, _, place), ns, is_open in zip(
                seen, result.out_of_band_ns.tolist(), result.out_of_band_open.tolist(), strict=True
            ):
                assert ns != BY_WEIGHT or gaps
                self.result[tid, place, True] += max(ns, 0)
                if is_open:
                    known[tid] = place
            rows = zip(
                mine,
                result.sample_ns.tolist(),
                result.sample_blocked,
                result.sample_open.tolist(),
                strict=True,
            )
            for (tid, _, place), ns, blocked, is_open in rows:
                self.result[tid, place, bool(blocked)] += max(ns, 0)
                if is_open:
                    known[tid] = place
            for tid, blocked, ns in result.bare:
                self.result[tid, -1, blocked] += ns
            since = now
        return self

    def total(self, of: dict[tuple[int, int, bool], int], tid: int) -> int:
        return sum(ns for (t, _, _), ns in of.items() if t == tid)

    def share(self, of: dict[tuple[int, int, bool], int], place: int) -> float:
        return sum(ns for (_, p, _), ns in of.items() if p == place) / sum(of.values())


@pytest.mark.parametrize("seed", range(5))
def test_with_a_sample_of_each_stretch_every_place_has_its_time_to_the_nanosecond(seed: int) -> None:
    world = World(seed).play()
    whole = {key: ns for key, ns in world.truth.items() if key[0] % 2 == 0}
    assert whole
    for key in whole:
        # before the first record only /proc shows the state
        assert (
            abs(sum(world.result[key[0], key[1], b] - world.truth[key[0], key[1], b] for b in (True, False))) < 2 * MS
        )


@pytest.mark.parametrize(("seed", "period"), [(1, 7), (2, 17), (3, 41)])
def test_few_samples_stand_for_all_and_a_threads_time_stays_exact(seed: int, period: int) -> None:
    world = World(seed, period=period, scale_ms=(0.02, 5.0), seconds=6).play()
    for tid in range(1, world.threads + 1):
        assert world.total(world.result, tid) == pytest.approx(world.total(world.truth, tid), rel=0.01)
    for place in range(3):
        assert world.share(world.result, place) == pytest.approx(world.share(world.truth, place), abs=0.08)
    blocked = sum(ns for (_, _, b), ns in world.result.items() if b) / sum(world.result.values())
    true = sum(ns for (_, _, b), ns in world.truth.items() if b) / sum(world.truth.values())
    assert blocked == pytest.approx(true, abs=0.03)


def test_without_samples_looks_say_where_and_records_how_long() -> None:
    world = World(7, period=10**9, seconds=8).play()
    for tid in range(1, world.threads + 1):
        assert world.total(world.result, tid) == pytest.approx(world.total(world.truth, tid), rel=0.01)
    true = {p: sum(ns for (_, q, b), ns in world.truth.items() if b and q == p) for p in range(3)}
    result = {p: sum(ns for (_, q, b), ns in world.result.items() if b and q == p) for p in range(3)}
    for place in range(3):
        assert result[place] / sum(result.values()) == pytest.approx(true[place] / sum(true.values()), abs=0.08)


def test_records_that_were_lost_cost_no_thread_its_time() -> None:
    gaps = [(700 * MS, 950 * MS), (1510 * MS, 1580 * MS), (2000 * MS, 2200 * MS)]
    world = World(11, scale_ms=(0.02, 2.0), seconds=4).play(gaps=gaps)
    for tid in range(1, world.threads + 1):
        assert world.total(world.result, tid) == pytest.approx(world.total(world.truth, tid), rel=0.08)


def test_a_long_sleep_is_told_in_parts_as_it_passes() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    spent.add_threads({5: 0})
    none = points([])
    first = spent.attribute(none, none, points([(5, 40 * MS, 0)]), 100 * MS)
    assert (first.out_of_band_ns.tolist(), first.carried) == ([100 * MS], [])
    for now in (200, 300):
        result = spent.attribute(none, none, points([(5, now * MS - 1, 0)]), now * MS)
        assert (result.out_of_band_ns.tolist(), result.carried) == ([-1], [(5, (now - 100) * MS, 100 * MS)])
    result = spent.attribute(points([(5, 333 * MS, IN)]), none, none, 400 * MS)
    assert result.carried == [(5, 300 * MS, 33 * MS)]
    result = spent.attribute(
        points([(5, 450 * MS, BLOCKED)]), points([(5, 450 * MS - 900, 0)]), none, 500 * MS, DrainState(ends_window=True)
    )
    assert (result.sample_ns.tolist(), result.sample_blocked.tolist(), result.carried) == (
        [50 * MS],
        [True],
        [],
    )


def test_a_thread_that_ends_asleep_or_running_is_told_no_further() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    spent.add_threads({5: 0, 6: 0})
    none = points([])
    result = spent.attribute(points([(5, 10 * MS, BLOCKED), (5, 30 * MS, IN), (5, 31 * MS, ENDED),
                          (6, 50 * MS, ENDED)]), points([(5, 10 * MS - 500, 0)]), none, 100 * MS)  # fmt: skip
    assert (result.sample_ns.tolist(), result.carried, result.bare) == ([20 * MS], [], [])
    result = spent.attribute(none, none, none, 200 * MS, DrainState(ends_window=True))
    assert (result.carried, result.bare) == ([], [])


def test_a_thread_that_runs_from_the_beginning_is_not_told() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    spent.add_threads({5: 0})
    none = points([])
    assert spent.attribute(none, none, none, 900 * MS).carried == []
    result = spent.attribute(
        points([(5, 950 * MS, PREEMPTED), (5, 960 * MS, IN)]), points([(5, 950 * MS - 10, 0)]), none, 1000 * MS
    )
    assert (result.sample_ns.tolist(), result.sample_blocked.tolist(), result.bare) == (
        [10 * MS],
        [False],
        [],
    )


def test_a_switch_that_two_events_reported_is_one() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    twice = [(5, 10 * MS, BLOCKED), (5, 10 * MS + 100, BLOCKED), (5, 20 * MS, IN), (5, 20 * MS + 100, IN)]
    samples = points([(5, 10 * MS - 300, 0), (5, 10 * MS + 50, 0)])
    result = spent.attribute(points(twice), samples, none, 100 * MS)
    assert sorted(result.sample_ns.tolist()) == [-1, 10 * MS]


def test_a_thread_left_alone_is_owed_its_time_and_gets_it_when_records_come_again() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])

    def busy(start: int) -> tuple[ThreadEvents, ThreadEvents]:
        ticks = range(start, start + 100 * MS, MS)
        return (
            points([m for at in ticks for m in ((5, at + 1000, BLOCKED), (5, at + MS // 2 + 1000, IN))]),
            points([(5, at, 0) for at in ticks]),
        )

    result = spent.attribute(*busy(0), none, 100 * MS)
    assert result.sample_ns.sum() == pytest.approx(50 * MS, rel=0.01)
    for now in (200, 300):
        result = spent.attribute(none, none, none, now * MS, DrainState(paused=frozenset({5}), ran_ns={5: 50 * MS}))
        assert (result.carried, result.bare) == ([], [])
    spent.resume_threads([5], 300 * MS)
    result = spent.attribute(*busy(300 * MS), none, 400 * MS, DrainState(ran_ns={5: 50 * MS}))
    assert result.sample_ns.sum() == pytest.approx(150 * MS, rel=0.01)
    result = spent.attribute(
        none, none, none, 500 * MS, DrainState(paused=frozenset({5}), ran_ns={5: 50 * MS}, ends_window=True)
    )
    assert sum(ns for _, _, ns in result.carried) == pytest.approx(50 * MS, rel=0.1)


def test_what_a_thread_left_alone_is_owed_is_not_what_it_waited_for_a_processor() -> None:
    spent = OffCpuIntervals(False, 0, 25 * MS)
    none = points([])

    def displaced(start: int) -> tuple[ThreadEvents, ThreadEvents]:
        """Return events of a thread that sleeps and waits for a processor for a quarter of each millisecond each."""
        ticks = range(start, start + 100 * MS, MS)
        kinds = ((1000, BLOCKED), (MS // 4 + 1000, IN), (MS // 2 + 1000, PREEMPTED), (MS // 4 * 3 + 1000, IN))
        return points([(5, at + after, kind) for at in ticks for after, kind in kinds]), points(
            [(5, at, 0) for at in ticks]
        )

    result = spent.attribute(*displaced(0), none, 100 * MS)
    assert result.sample_ns.sum() == pytest.approx(25 * MS, rel=0.01)
    paused = DrainState(paused=frozenset({5}), ran_ns={5: 50 * MS})
    spent.attribute(none, none, none, 200 * MS, paused)
    spent.resume_threads([5], 200 * MS)
    result = spent.attribute(*displaced(200 * MS), none, 300 * MS, DrainState(ran_ns={5: 50 * MS}))
    assert result.sample_ns.sum() == pytest.approx(50 * MS, rel=0.01)
    result = spent.attribute(none, none, none, 400 * MS, replace(paused, ends_window=True))
    assert sum(ns for _, _, ns in result.carried) == pytest.approx(25 * MS, rel=0.1)


def test_untracked_thread_that_ends_has_no_wait_for_a_processor() -> None:
    spent = OffCpuIntervals(False, 0, 25 * MS)
    none = points([])
    moves = [(5, MS, BLOCKED), (5, 11 * MS, IN), (5, 12 * MS, PREEMPTED), (5, 42 * MS, IN)]
    spent.attribute(points(moves), points([(5, MS - 500, 0)]), none, 100 * MS)
    spent.attribute(none, none, none, 200 * MS, DrainState(paused=frozenset({5}), ran_ns={5: 40 * MS}))
    spent.forget_thread(5)
    result = spent.attribute(none, none, none, 300 * MS)
    assert [ns for _, _, ns in result.carried] == [15 * MS]


def test_a_short_look_at_a_thread_left_alone_does_not_stand_for_the_time_before_it() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    spent.attribute(points([(5, MS, BLOCKED), (5, 2 * MS, IN)]), points([(5, MS - 500, 0)]), none, 100 * MS)
    spent.attribute(none, none, none, 200 * MS, DrainState(paused=frozenset({5}), ran_ns={5: 40 * MS}))
    spent.resume_threads([5], 200 * MS)
    result = spent.attribute(points([(5, 203 * MS, BLOCKED), (5, 204 * MS, IN)]), points([(5, 203 * MS - 500, 0)]),
                          none, 210 * MS, DrainState(ran_ns={5: 5 * MS}))  # fmt: skip
    assert result.sample_ns.tolist() == [MS]
    samples = points([(5, at * MS - 500, at) for at in range(211, 290, 2)])
    records = points([m for at in range(211, 290, 2) for m in ((5, at * MS, BLOCKED), (5, (at + 1) * MS, IN))])
    result = spent.attribute(records, samples, none, 310 * MS, DrainState(ran_ns={5: 50 * MS}))
    assert result.sample_ns.sum() == (60 + 5 - 1 + 50) * MS


def test_a_thread_that_ends_while_it_is_left_alone_gets_no_more_time() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    spent.attribute(points([(5, MS, BLOCKED), (5, 2 * MS, IN)]), points([(5, MS - 500, 0)]), none, 100 * MS)
    spent.attribute(none, none, none, 200 * MS, DrainState(paused=frozenset({5}), ran_ns={5: 40 * MS}))
    spent.resume_threads([5], 200 * MS)
    assert spent.paused_threads == [5]
    spent.forget_thread(5)
    spent.resume_threads([5], 250 * MS)
    result = spent.attribute(none, none, none, 300 * MS)
    assert (result.carried, result.bare) == ([(5, 140 * MS, 60 * MS)], [])
    result = spent.attribute(none, none, none, 9000 * MS, DrainState(ends_window=True))
    assert (result.carried, result.bare, spent.paused_threads) == ([], [], [])


def test_the_end_of_a_thread_that_was_left_alone_before_ends_what_it_is_owed() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    spent.attribute(points([(5, MS, BLOCKED), (5, 2 * MS, IN)]), points([(5, MS - 500, 0)]), none, 100 * MS)
    spent.attribute(none, none, none, 200 * MS, DrainState(paused=frozenset({5})))
    spent.resume_threads([5], 200 * MS)
    result = spent.attribute(points([(5, 210 * MS, ENDED)]), none, none, 300 * MS)
    result = spent.attribute(none, none, none, 400 * MS)
    assert sum(ns for _, _, ns in result.carried) == 110 * MS
    assert spent.attribute(none, none, none, 500 * MS, DrainState(ends_window=True)).carried == []


def test_a_thread_of_which_nothing_was_heard_may_be_gone_whatever_was_believed_of_it() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    spent.add_threads({5: 0})
    spent.attribute(none, none, none, 100 * MS)
    assert spent.find_silent(900 * MS) == []
    assert spent.find_silent(1100 * MS) == [5]


@pytest.mark.parametrize("seen", ["sample", "look"])
def test_time_that_two_rings_lost_is_left_out_once(seen: str) -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    records = points([(7, 10 * MS, BLOCKED), (7, 60 * MS, IN), (7, 100 * MS, BLOCKED), (7, 110 * MS, IN)])
    samples = points([(7, 10 * MS - 1000, 0), (7, 100 * MS - 1000, 0)]) if seen == "sample" else none
    looks = points([(7, 30 * MS, 0), (7, 105 * MS, 0)]) if seen == "look" else none
    gaps = [(10 * MS, 50 * MS), (30 * MS, 60 * MS), (10 * MS, 60 * MS)]
    result = spent.attribute(records, samples, looks, 1000 * MS, DrainState(gaps=gaps, ends_window=True))
    column = result.sample_ns if seen == "sample" else result.out_of_band_ns
    assert (column.min(), column.max()) == (0, round(10 * MS * 1000 / 950))


def test_a_thread_is_met_once_and_not_again_after_its_end() -> None:
    spent = OffCpuIntervals(True, 0, 25 * MS)
    none = points([])
    spent.add_threads({7: MS})
    spent.attribute(points([(7, 50 * MS, IN), (7, 60 * MS, PREEMPTED), (7, 61 * MS, ENDED)]), none, none, 100 * MS)
    spent.add_threads({7: MS})
    later = 3_600_000
    records = points([(7, (later + 50) * MS, IN), (7, (later + 60) * MS, BLOCKED), (7, (later + 61) * MS, IN)])
    result = spent.attribute(
        records, points([(7, (later + 60) * MS - 500, 0)]), none, (later + 100) * MS, DrainState(ends_window=True)
    )
    assert (result.sample_ns.tolist(), result.carried, result.bare) == ([MS], [], [])


GAPS = st.integers(2, 500)


@given(
    gaps=st.lists(st.tuples(GAPS, GAPS, st.booleans(), st.booleans()), min_size=1, max_size=20),
    drains=st.lists(st.tuples(GAPS, st.booleans()), min_size=1, max_size=12),
)
def test_each_window_has_the_intervals_of_its_own_time(
    gaps: list[tuple[int, int, bool, bool]], drains: list[tuple[int, bool]]
) -> None:
    """Check that the sum of each window is exact except for rounding.

    Args:
        gaps: Microseconds that the thread ran before an interval, its length in microseconds, whether the thread
            blocked,
            and whether the kernel took a sample.
        drains: Time since the last drain, and whether a window ends.
    """
    records: list[Moment] = []
    samples: list[Moment] = []
    off: list[tuple[int, int]] = []
    now = 0
    for ran, length, blocks, is_sampled in gaps:
        begin, now = now + 1000 * ran, now + 1000 * (ran + length)
        off.append((begin, now))
        records += [(1, begin, BLOCKED if blocks else PREEMPTED), (1, now, IN)]
        samples += [(1, begin - 100, 0)] * is_sampled
    intervals = OffCpuIntervals(True, 0, MS)
    intervals.add_threads({1: 0})
    none = points([])
    before = began = found = 0
    for passed, ends_window in [*drains, (1, True)]:
        until = before + 1000 * passed
        inside = [[each for each in moments if before < each[1] <= until] for moments in (records, samples)]
        switches, left = map(points, inside)
        result = intervals.attribute(switches, left, none, until, DrainState(ends_window=ends_window))
        found += int(result.sample_ns[result.sample_ns > 0].sum())
        found += sum(ns for _, _, ns in (*result.carried, *result.bare))
        before = until
        if ends_window:
            true_ns = sum(max(min(end, until) - max(begin, began), 0) for begin, end in off)
            assert found == pytest.approx(true_ns, abs=len(gaps)), "a nanosecond of rounding each"
            began, found = until, 0
