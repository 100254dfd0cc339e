"""Tests of the recorder: rows, sleepers that did not run, stacks completed by a later stop, and windows."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.lazy_dataclasses import field_names, replace
from pyprof.model.arch import X86_64
from pyprof.model.interpreter_frames import SampleState
from pyprof.model.marker_frames import Blocked
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch, SampleKind, StackSlab
from pyprof.model.thread_identity import Labels
from pyprof.model.unwind_result import StackEnd, Walk
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline import window_row_store
from pyprof.session.pipeline.batch_to_stacks import Interning
from pyprof.session.pipeline.profile_assembly import amounts, limit_to_window, list_threads
from pyprof.session.pipeline.sample_windows import CLIPPED, Clock, Recorder, Window, WindowPosition

STOPPED, BLOCKED, UNCHANGED = SampleKind.STOPPED, SampleKind.BLOCKED, SampleKind.UNCHANGED


class Script:
    """A collector whose batches come from the test. It stores the received feedback."""

    def __init__(self) -> None:
        self.learned: list[Feedback] = []

    def batches(self) -> Iterator[SampleBatch]:
        return iter(())

    def learn(self, feedback: Feedback) -> None:
        self.learned.append(feedback)

    def retire(self) -> None: ...

    def threads(self) -> list[ThreadInfo]:
        return [ThreadInfo(1, 1, "one", "p"), ThreadInfo(1, 2, "two", "p")]

    def stats(self) -> CollectorStats:
        return CollectorStats()

    def stop(self) -> None: ...

    def close(self) -> None: ...


class OneFrame:
    """A walker that finds only the pc. A BLOCKED sample with pc 0xbad needs a register."""

    def walk(self, batch: SampleBatch) -> Walk:
        n = len(batch)
        pc = batch.regs[:, X86_64.pc].copy()
        lacks = (pc == 0xBAD) & (batch.kind == BLOCKED)
        ends = np.where(lacks, StackEnd.NO_RULE, StackEnd.ROOT).astype(np.uint8)
        zeros, top = np.zeros(n, np.uint64), np.full(n, 0x7040, np.uint64)
        ones, contexts = np.ones(n, np.bool_), np.zeros(n, np.uint8)
        sp = batch.regs[:, X86_64.sp].copy()
        return Walk(np.arange(n + 1), pc, ones, contexts, sp, ends, zeros, top, lacks)


def batch(*samples: tuple[SampleKind, int, int]) -> SampleBatch:
    """Return a batch of samples (kind, tid, pc)."""
    n = len(samples)
    regs = np.zeros((n, len(X86_64.registers)), np.uint64)
    regs[:, X86_64.pc] = [pc for _, _, pc in samples]
    regs[:, X86_64.sp] = 0x7000
    tid = np.array([tid for _, tid, _ in samples], np.int32)
    zeros = np.zeros(n, np.int64)
    return SampleBatch(
        arch=X86_64,
        kind=np.array([kind for kind, _, _ in samples], np.uint8),
        time_ns=np.arange(n, dtype=np.int64),
        tid=tid,
        pid=np.ones(n, np.int32),
        space=np.zeros(n, np.int32),
        cpu=np.full(n, -1, np.int32),
        weight=np.ones(n, np.int64),
        regs=regs,
        stack=StackSlab(np.zeros(0, np.uint8), zeros.astype(np.uint64), zeros, zeros),
        spaces={},
    )


def recorder() -> Recorder:
    return Recorder(Script(), Interning(OneFrame(), None, None), Diagnostics())


def pcs(rec: Recorder) -> list[tuple[int, list[int]]]:
    """Close the window and return its rows."""
    return rows_of(rec.cut())


def rows_of(window: Window) -> list[tuple[int, list[int]]]:
    """Return (tid, pcs from root to leaf) of each row. The pc of a marker is its StackEnd."""
    found = []
    for thread, node in zip(window.thread.tolist(), window.node.tolist(), strict=True):
        tid = window.keys[thread].tid
        path = []
        while node > 0:
            (key,) = window.stacks.key(node)
            path.append(int(key.mark.end) if key.mark else key.pc)
            node = window.stacks.parent[node]
        found.append((tid, path[::-1]))
    return found


class Unreadable(OneFrame):
    def walk(self, batch: SampleBatch) -> Walk:
        walk = super().walk(batch)
        walk.end[:] = StackEnd.UNREADABLE
        return walk


def test_stack_of_which_nothing_was_there_is_gone() -> None:
    rec = Recorder(Script(), Interning(Unreadable(), None, None), Diagnostics())
    samples = replace(batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20)), stopped=False)
    samples.stack.size[1] = 16
    rec.add_batch(samples)
    assert pcs(rec) == [(1, [StackEnd.GONE, 0x10]), (2, [StackEnd.UNREADABLE, 0x20])]
    rec.add_batch(batch((STOPPED, 1, 0x10)))
    assert pcs(rec) == [(1, [StackEnd.UNREADABLE, 0x10])], "a thread that was stopped had its memory"


def test_parts_of_a_window_are_the_window() -> None:
    """Take parts of a window with their own times, counts and stacks, without closing the window."""
    now = [10**9]
    diagnostics = Diagnostics()
    clock = Clock(lambda: now[0], lambda: now[0] - 10**9)
    rec = Recorder(Script(), Interning(OneFrame(), None, None), diagnostics, clock)
    parts = []
    for pc in (0x10, 0x20, 0x30):
        rec.add_batch(batch((STOPPED, 1, pc), (UNCHANGED, 1, 0), (STOPPED, 2, 0x77)))
        diagnostics.count("oddity")
        now[0] += 10**9
        parts.append(rec.part())
    now[0] += 10**9
    whole = rec.cut()
    assert rows_of(whole) == [row for part in parts for row in rows_of(part)]
    assert [{key.pc for key in part.stacks.frames} for part in parts] == [{0x10, 0x77}, {0x20, 0x77}, {0x30, 0x77}]
    assert [part.errors for part in parts] == [{"oddity": 1}] * 3
    assert whole.errors == {"oddity": 3}
    assert [(part.start_ns, part.duration_ns) for part in parts] == [(at * 10**9, 10**9) for at in (1, 2, 3)]
    assert (whole.start_ns, whole.duration_ns) == (10**9, 4 * 10**9)
    rec.add_batch(batch((STOPPED, 1, 0x40)))
    assert rows_of(rec.part()) == [(1, [0x40])]


@pytest.mark.parametrize("lengths", [False, True])
def test_nothing_of_a_batch_is_kept_once_it_is_unwound(lengths: bool) -> None:
    """Check that no view of a column is kept, because a view keeps the whole received message."""
    rec = recorder()
    one = batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20))
    if lengths:
        one = replace(one, length_ns=np.array([5, 7], np.int64))
    columns = [value for name in field_names(SampleBatch) if isinstance(value := getattr(one, name), np.ndarray)]
    alive = [weakref.ref(column) for column in columns]
    assert len(alive) >= 8 + lengths
    rec.add_batch(one)
    assert isinstance(rec._collector, Script)
    rec._collector.learned.clear()
    del one, columns
    gc.collect()
    assert [each() for each in alive] == [None] * len(alive)
    assert rec.cut().cpu.tolist() == [-1, -1]


def test_unchanged_sample_repeats_the_stack_of_its_own_thread() -> None:
    rec = recorder()
    rec.add_batch(
        batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20), (UNCHANGED, 1, 0), (UNCHANGED, 2, 0), (STOPPED, 1, 0x11))
    )
    rec.add_batch(batch((UNCHANGED, 2, 0), (UNCHANGED, 1, 0)))
    assert pcs(rec) == [(1, [0x10]), (2, [0x20]), (1, [0x10]), (2, [0x20]), (1, [0x11]), (2, [0x20]), (1, [0x11])]


def labels_of(window: Window) -> list[Labels]:
    return [window.label_sets[number] for number in window.labels.tolist()]


def test_samples_have_the_labels_that_their_thread_had_when_it_ran_last() -> None:
    rec, one, other = recorder(), (("path", "/a"),), (("path", "/b"),)
    samples = batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20), (UNCHANGED, 1, 0), (STOPPED, 1, 0x10), (STOPPED, 2, 0x20))
    rec.add_batch(replace(samples, labels={0: one, 4: other}))
    begun = WindowPosition()
    assert {thread.labels for _, thread in rec.since(begun).threads} == {one, other, ()}
    assert labels_of(rec.cut()) == [one, (), one, (), other]
    rec.add_batch(batch((UNCHANGED, 1, 0), (UNCHANGED, 2, 0), (STOPPED, 2, 0x20)))
    assert labels_of(rec.cut()) == [(), other, ()]


def test_thread_is_in_a_profile_once_for_each_set_of_labels() -> None:
    rec = recorder()
    labels = {0: (("path", "/a"),), 2: (("path", "/b"),), 3: (("path", "/a"),)}
    rec.add_batch(replace(batch(*[(STOPPED, 1, 0x10)] * 4, (STOPPED, 2, 0x10)), labels=labels))
    threads, thread = list_threads(rec.cut())
    found = [(threads[at].tid, threads[at].name, dict(threads[at].labels).get("path")) for at in thread.tolist()]
    assert found == [(1, "one", "/a"), (1, "one", None), (1, "one", "/b"), (1, "one", "/a"), (2, "two", None)]
    assert len(threads) == 4


def test_sets_of_labels_beyond_the_maximum_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_row_store, "MAX_LABEL_SETS", 3)
    diagnostics = Diagnostics()
    rec = Recorder(Script(), Interning(OneFrame(), None, None), diagnostics)
    rec.add_batch(replace(batch(*[(STOPPED, 1, 0x10)] * 4), labels={n: (("n", str(n)),) for n in range(4)}))
    assert labels_of(rec.cut()) == [(("n", "0"),), (("n", "1"),), (), ()]
    assert diagnostics.counts["too_many_label_sets"] == 2


def test_stack_of_a_wait_stays_when_its_thread_waits_for_a_processor_then() -> None:
    def named(window: Window) -> list[list[int | str]]:
        table, found = window.stacks, []
        for node in window.node.tolist():
            path: list[int | str] = []
            while node > 0:
                (key,) = table.key(node)
                path.append(key.blocked.state if key.blocked else int(key.mark.kind) if key.mark else key.pc)
                node = table.parent[node]
            found.append(path[::-1])
        return found

    rec = recorder()
    asleep, late = ((), (Blocked("x86-64", "S", 230), 0xFF00)), ((), (Blocked("x86-64", "P"),))
    inside = np.ones(2, np.int32)
    first = batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20))
    rec.add_batch(replace(first, kernel_stack=np.array([1, 0], np.int32), kernel_stacks=asleep))
    rec.add_batch(replace(batch((UNCHANGED, 1, 0), (UNCHANGED, 2, 0)), kernel_stack=inside, kernel_stacks=late))
    rec.add_batch(
        replace(
            batch((UNCHANGED, 1, 0), (UNCHANGED, 3, 0)), kernel_stack=np.array([0, 1], np.int32), kernel_stacks=late
        )
    )
    found = named(rec.cut())
    assert found[:2] == [[0x10, 0xFF00, "S"], [0x20]]
    assert found[2:4] == [[0x10, 0xFF00, "P"], [0x20, "P"]]
    assert found[4] == [0x10, 0xFF00, "S"]
    assert found[5][1:] == ["P"]


def test_sample_says_how_it_was_taken_whatever_stack_it_has() -> None:
    rec = recorder()
    rec.add_batch(
        batch((STOPPED, 1, 0x10), (BLOCKED, 2, 0xBAD), (UNCHANGED, 1, 0), (STOPPED, 2, 0xBAD), (UNCHANGED, 2, 0))
    )
    rec.add_batch(replace(batch((STOPPED, 1, 0x10), (UNCHANGED, 1, 0)), stopped=False))
    stopped, asleep, unchanged = SampleState.STOPPED, SampleState.ASLEEP, SampleState.UNCHANGED
    assert rec.cut().state.tolist() == [stopped, asleep, unchanged, stopped, unchanged, 0, unchanged]


def test_samples_for_which_no_time_is_left_keep_their_innermost_frame_below_a_marker() -> None:
    rec = recorder()
    rec.add_batch(batch((STOPPED, 1, 0x10), (STOPPED, 2, 0x20)))
    rec.unwind_leaves_only()
    rec.add_batch(batch((STOPPED, 1, 0x10), (UNCHANGED, 2, 0), (STOPPED, 1, 0x11)))
    late = int(StackEnd.LATE)
    assert pcs(rec) == [(1, [0x10]), (2, [0x20]), (1, [late, 0x10]), (2, [0x20]), (1, [late, 0x11])]


def test_unchanged_sample_in_the_next_window_keeps_its_stack() -> None:
    rec = recorder()
    rec.add_batch(batch((STOPPED, 1, 0x10)))
    rec.cut()
    rec.add_batch(batch((UNCHANGED, 1, 0)))
    assert pcs(rec) == [(1, [0x10])]


def test_sleeper_that_needs_a_register_is_completed_by_the_stop_that_follows() -> None:
    rec = recorder()
    rec.add_batch(batch((BLOCKED, 1, 0xBAD), (UNCHANGED, 1, 0)))
    script = rec._collector
    assert isinstance(script, Script)
    assert script.learned[0].stop.tolist() == [True]
    assert script.learned[0].top.tolist() == [0], "a walk that was cut short says nothing of the stack's length"
    rec.add_batch(batch((STOPPED, 1, 0xBAD), (UNCHANGED, 1, 0)))
    assert pcs(rec) == [(1, [0xBAD])] * 4


def test_sleeper_that_ran_before_the_stop_stays_marked_as_cut_short() -> None:
    rec = recorder()
    rec.add_batch(batch((BLOCKED, 1, 0xBAD)))
    rec.add_batch(batch((BLOCKED, 1, 0x10)))
    assert pcs(rec) == [(1, [int(StackEnd.NO_RULE), 0xBAD]), (1, [0x10])]


def test_samples_are_weighed_and_timed_in_the_window_that_took_them() -> None:
    rec = recorder()
    rec.add_batch(batch((STOPPED, 1, 0x10), (STOPPED, 1, 0x10)))
    first = rec.cut()
    second = rec.cut()
    assert (first.weight.sum(), second.weight.sum()) == (2, 0)
    assert np.all(np.diff(first.time_ns) >= 0)
    assert second.start_ns == first.start_ns + first.duration_ns


def test_recording_begins_with_a_sample_that_was_taken_while_it_was_opened() -> None:
    for late_ns, early_ns in ((3, 3), (2 * 10**9, 0)):  # a clock that differs by two seconds is not comparable
        clock = Clock(now_ns=lambda: 10**18, monotonic_ns=lambda late_ns=late_ns: late_ns)  # type: ignore[misc]
        rec = Recorder(Script(), Interning(OneFrame(), None, None), Diagnostics(), clock)
        rec.add_batch(batch((STOPPED, 1, 0x10), (STOPPED, 1, 0x10)))
        window = rec.cut()
        assert (window.start_ns, window.duration_ns) == (10**18 - early_ns, early_ns)
        rec.add_batch(batch((STOPPED, 1, 0x10)))
        assert rec.cut().start_ns == 10**18, "the next one begins where this one ended"


def test_samples_that_come_after_the_last_cut_of_an_ended_recording_have_their_time() -> None:
    clock = Clock(now_ns=lambda: 10**18, monotonic_ns=lambda: 3)
    rec = Recorder(Script(), Interning(OneFrame(), None, None), Diagnostics(), clock)
    rec.end()
    rec.cut()
    assert rec.peek_window().duration_ns == 0
    rec.add_batch(batch((STOPPED, 1, 0x10)))
    window = rec.cut()
    assert (window.start_ns, window.duration_ns) == (10**18 - 3, 3)


@st.composite
def _samples(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Return samples as (thread, time, length), with times before, in and after a window of a second."""
    times, lengths = st.integers(-(10**11), 10**11), st.integers(-1, 3 * 10**9)
    return draw(st.lists(st.tuples(st.integers(1, 4), times, lengths), min_size=1, max_size=30))


@given(_samples())
def test_no_thread_has_more_time_than_its_window(samples: list[tuple[int, int, int]]) -> None:
    now = [10**12]
    clock = Clock(lambda: now[0], lambda: now[0])
    rec = Recorder(Script(), Interning(OneFrame(), None, None), Diagnostics(), clock)
    made = batch(*((STOPPED, tid, 0x10) for tid, _, _ in samples))
    made.time_ns[:] = [10**12 + time_ns for _, time_ns, _ in samples]
    length_ns = np.array([ns for _, _, ns in samples], np.int64)
    rec.add_batch(replace(made, weight=made.weight * 10, length_ns=length_ns))
    now[0] += 10**9
    window = rec.cut()
    values = limit_to_window(window, amounts(window, 10**7))
    asked: Counter[int] = Counter()
    for tid, _, ns in samples:
        asked[tid] += max(ns, 0)
    for number, key in window.keys.items():
        own = window.thread == number
        if (window.length_ns >= 0).any():
            assert values[own, 1].sum() <= window.duration_ns
        if asked[key.tid] <= window.duration_ns:
            assert sorted(window.length_ns[own].tolist()) == sorted(ns for tid, _, ns in samples if tid == key.tid)
    left_out_ms = sum(max(ns - window.duration_ns, 0) for ns in asked.values()) / 1e6
    assert window.errors.get(CLIPPED, 0) == pytest.approx(left_out_ms, abs=1)


def test_threads_that_nobody_listed_belong_to_their_process() -> None:
    rec = recorder()
    rec.add_batch(batch((STOPPED, 1, 0x10), (STOPPED, 7, 0x20)))  # thread 7 ended before its name was read
    threads = {thread.tid: thread for thread in rec.cut().threads}
    assert threads[7] == ThreadInfo(1, 7, "p", "p")
    assert threads[1].name == "one"
