"""Tests of threads whose stacks the kernel cannot copy: they are stopped while that is so, and no other thread is."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyprof.collectors.base import Feedback
from pyprof.collectors.combined import threads_to_stop
from pyprof.collectors.combined.threads_to_stop import StopCandidates
from pyprof.collectors.linux import libc
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event
from pyprof.collectors.perf.stack_copy_size import StackSize
from pyprof.model.arch import X86_64
from pyprof.model.profile import Profile
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind, StackSlab
from pyprof.options import CollectOptions
from tests.live.support.ladders import ladder
from tests.live.support.recording import LIFE, Recording, names, record, running, watched
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

STOPPED, NOT_COPIED = "threads_stopped_for_depth", "stacks_not_copied"
"""Reasons of notes about stacks that the kernel does not copy."""
DEEP = ("main", *["down"] * 8000, "bottom")


@pytest.fixture
def allowed() -> None:
    try:
        choose_event(os.getpid(), 0, CollectOptions())
    except PerfNotAllowed as error:
        missing(f"needs perf_events: {error.message} {error.hint}")


Enough = Callable[[Recording], bool]


def reasons(summary: Mapping[str, Any]) -> set[str]:
    return {note["reason"] for note in summary["notes"]}


def by_perf(
    pid: int,
    folder: Path,
    *options: str,
    seconds: float = 3,
    rate: int = 299,
    until: Enough = lambda recording: True,
) -> Recording:
    """Record with perf_events until a condition holds: the load of the machine delays a thread's first stop."""
    return record(pid, folder, "--collector", "perf", "-t", *options, seconds=seconds, rate=rate, until=until)


def of(recording: Recording, name: str) -> int:
    """Return the number of samples whose stack contains a function."""
    return sum(n for stack, n in recording.stacks.items() if name in stack)


@pytest.mark.parametrize("collector", ["perf", "auto"])
def test_deep_thread_is_whole_by_stops_and_the_one_beside_it_is_never_stopped(
    collector: str, allowed: None, tmp_path: Path
) -> None:
    def enough(recording: Recording) -> bool:
        """Return True if there are more stops than samples that a busy machine takes before the first stop."""
        stops = int(recording.summary["stops"]["count"])
        return min(stops, of(recording, "flat")) > max(20, of(recording, "bottom") / 2)

    with running(ladder("ladder_beside"), "spin", LIFE, LIFE, "8000") as program:
        recording = by_perf(program.pid, tmp_path, "--collector", collector, until=enough)
    summary = recording.summary
    assert recording.whole == 1.0
    assert all(stack[4:][: len(DEEP)] == DEEP for stack in recording.stacks if "bottom" in stack)
    assert enough(recording)
    assert summary["stops"]["count"] <= of(recording, "bottom")
    assert summary["trust"]["completed"] > 1000  # frames of samples before the first stop
    assert {"threads": 1} in [note["arguments"] for note in summary["notes"] if note["reason"] == STOPPED]


def test_wall_mode_stops_nothing_and_says_that_it_cut_and_how_much(allowed: None, tmp_path: Path) -> None:
    with running(ladder("ladder_beside"), "spin", LIFE, LIFE, "8000") as program:
        summary = by_perf(
            program.pid,
            tmp_path,
            "--mode",
            "wall",
            seconds=1.5,
            until=lambda r: NOT_COPIED in reasons(r.summary),
        ).summary
    assert summary["stops"]["count"] == 0
    assert NOT_COPIED in reasons(summary), summary["notes"]
    shown = summary["shown"]
    assert 0.2 < shown["ends"]["unreadable"] / shown["total"] < 0.8, "one of two threads"
    with running(ladder("ladder_beside"), "spin", LIFE, "0", "8000") as program:
        time.sleep(0.3)  # the stack is deep at the start only
        summary = by_perf(program.pid, tmp_path, "--mode", "wall", seconds=1).summary
    assert summary["samples"] > 0
    assert NOT_COPIED not in reasons(summary), summary["notes"]


def test_stack_with_pages_that_were_never_written_is_whole_without_stops(allowed: None, tmp_path: Path) -> None:
    def is_mostly_whole(recording: Recording) -> bool:
        """Return True if most stacks are whole. The first ones, which trigger the larger copies, are truncated."""
        whole = sum(n for stack, n in recording.stacks.items() if stack[-3:] == ("outer", "wide", "bottom"))
        return whole > max(20, recording.samples / 2)

    with running(ladder("ladder_gap"), "spin", LIFE) as program:
        recording = by_perf(program.pid, tmp_path, seconds=1, until=is_mostly_whole)
    assert is_mostly_whole(recording)
    assert recording.summary["stops"]["count"] == 0


def test_handler_on_its_own_stack_is_whole(allowed: None) -> None:
    def whole(profile: Profile) -> list[bool]:
        """Return whether each handler's stack is complete, in order of time.

        Samples before the first stop stay truncated.
        """
        return ["s_01" in stack for stack in names(profile) if stack[-2:] == ("handler", "handler_top")]

    with running(ladder("ladder_altstack"), "spin", LIFE) as program:
        profile = watched(program.pid, lambda profile: sum(whole(profile)) > 5, collector="perf", rate=299)
    found = whole(profile)
    assert sum(found) > 5
    assert all(found[found.index(True) :])
    assert profile.summary.stops.count > sum(found)


def test_thread_whose_stacks_have_become_short_is_given_back(allowed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # 512 stops take minutes on a busy machine
    monkeypatch.setattr(threads_to_stop, "_Case", partial(threads_to_stop._Case, enough=20))
    without_stops: list[int] = []

    def given_back(profile: Profile) -> bool:
        """Return True if the thread was stopped and later had samples without stops."""
        if STOPPED not in {note.reason for note in profile.summary.notes} or profile.summary.stops.count == 0:
            return False
        program.send_signal(signal.SIGUSR1)
        without_stops.append(sum("main" in stack for stack in names(profile)) - profile.summary.stops.count)
        return without_stops[-1] > without_stops[0] + 30

    with running(ladder("ladder_beside"), "spin", LIFE, LIFE, "8000") as program:
        profile = watched(program.pid, given_back, collector="perf", rate=499)
    assert given_back(profile)


def test_small_stack_size_stops_nothing_and_marks_what_is_cut(allowed: None, tmp_path: Path) -> None:
    with running(ladder("ladder_deep"), "spin", LIFE) as program:
        recording = by_perf(program.pid, tmp_path, "--stack-size", "64K", seconds=1.5, rate=99)
    assert recording.summary["ends"] == {"unreadable": recording.samples}
    assert recording.summary["stops"]["count"] == 0
    assert all("truncated" in stack[1] and stack[-1] == "deep_top" for stack in recording.stacks)


def in_time(recording: Recording) -> Recording:
    """Return the recording without the last samples, for which a busy machine has no time."""
    late = "[truncated: no time left to unwind]"
    return replace(recording, stacks={stack: n for stack, n in recording.stacks.items() if late not in stack})


def test_thread_that_somebody_else_traces_keeps_its_samples_and_they_are_marked(allowed: None, tmp_path: Path) -> None:
    with running(ladder("ladder_beside"), "spin", LIFE, LIFE, "8000") as program:
        assert libc.seize(program.pid) == 0
        recording = by_perf(program.pid, tmp_path, until=lambda r: of(in_time(r), "bottom") > 100)
    found = in_time(recording)
    cut = sum(n for stack, n in found.stacks.items() if any("truncated" in name for name in stack))
    assert cut == of(found, "bottom") > 100
    assert recording.summary["stops"]["count"] == 0


BASE = 0x7000_0000


def feedback(tids: Sequence[int], reach: int, cut: bool = False, away: bool = False, time_ns: int = 0) -> Feedback:
    """Return feedback of walks that needed `reach` bytes of stack."""
    n = len(tids)
    base, column = np.full(n, BASE, np.uint64), np.full(n, BASE + reach, np.uint64)
    stack = StackSlab(np.zeros(0, np.uint8), base, np.zeros(n, np.int64), np.full(n, 65528, np.int64))
    if away:
        stack = replace(stack, pieces={lane: (Piece(0x10, b""),) for lane in range(n)})
    batch = SampleBatch(
        arch=X86_64,
        kind=np.full(n, SampleKind.STOPPED, np.uint8),
        time_ns=np.full(n, time_ns, np.int64),
        tid=np.array(tids, np.int32),
        pid=np.full(n, 5, np.int32),
        space=np.ones(n, np.int32),
        cpu=np.zeros(n, np.int32),
        weight=np.ones(n, np.int64),
        regs=np.zeros((n, len(X86_64.registers)), np.uint64),
        stack=stack,
        spaces={},
    )
    none = np.zeros(n, np.uint64)
    top, missed = (none, column) if cut else (column, none)
    return Feedback(batch, top, missed, np.zeros(n, np.bool_))


def test_stack_that_a_larger_copy_holds_is_no_reason_to_stop() -> None:
    candidates = StopCandidates()
    candidates.learn_copied(feedback([1], 30000, cut=True))
    assert not candidates
    candidates.learn_copied(feedback([1], 65200, cut=True))
    assert candidates.wants(5, 1)
    assert candidates.pids == (5,)


def test_copies_of_a_thread_are_left_out_from_its_first_stop_on() -> None:
    candidates = StopCandidates()
    candidates.learn_copied(feedback([1, 2], 65200, cut=True))
    tids, times = np.array([1, 1, 2, 3], np.int32), np.array([99, 100, 500, 500])
    pids = np.full(4, 5, np.int32)
    assert not candidates.elsewhere(pids, tids, times).any()
    candidates.begun(feedback([1], 0, time_ns=100).batch)
    assert candidates.elsewhere(pids, tids, times).tolist() == [False, True, False, False]


def test_stops_that_are_worth_nothing_end_and_take_more_to_begin_again() -> None:
    candidates = StopCandidates()
    candidates.learn_copied(feedback([1], 65200, cut=True))
    for _ in range(512):
        candidates.learn_stopped(feedback([1], 65200, cut=True))
    assert not candidates
    for _ in range(7):
        candidates.learn_copied(feedback([1], 65200, cut=True))
        assert not candidates
    candidates.learn_copied(feedback([1], 65200, cut=True))
    assert candidates.wants(5, 1)


@pytest.mark.parametrize("away", [False, True])
def test_thread_that_needed_its_stops_comes_back_at_once_and_stays_longer(away: bool) -> None:
    candidates = StopCandidates()
    candidates.learn_copied(feedback([1], 65200, cut=True))
    candidates.learn_stopped(feedback([1], 2000 if away else 120_000, away=away))
    for _ in range(512):
        assert candidates.wants(5, 1)
        candidates.learn_stopped(feedback([1], 2000))
    assert not candidates
    candidates.learn_copied(feedback([1], 65200, cut=True))
    for _ in range(1023):
        candidates.learn_stopped(feedback([1], 2000))
    assert candidates.wants(5, 1)


def test_refused_thread_is_never_chosen_again() -> None:
    candidates = StopCandidates()
    candidates.learn_copied(feedback([1], 65200, cut=True))
    candidates.refuse(1)
    candidates.learn_copied(feedback([1], 65200, cut=True))
    assert not candidates
    assert not candidates.elsewhere(np.array([5], np.int32), np.array([1], np.int32), np.array([10**18])).any()
    assert math.isinf(candidates._cases[1].since_ns)


def test_thread_that_has_ended_is_stopped_no_more() -> None:
    candidates = StopCandidates()
    cut = feedback([os.getpid(), 2**22 + 7], 65200, cut=True)
    candidates.learn_copied(replace(cut, batch=replace(cut.batch, pid=cut.batch.tid)))
    candidates.forget_ended()
    assert list(candidates.pids) == [os.getpid()]


def test_threads_that_end_too_soon_have_their_process_stopped() -> None:
    candidates = StopCandidates()
    own = np.int32(os.getpid())
    for tid in (2**22 + 7, 2**22 + 8, 2**22 + 9):
        assert not candidates.wants(int(own), 77)
        cut = feedback([tid], 65200, cut=True)
        candidates.learn_copied(replace(cut, batch=replace(cut.batch, pid=np.array([own]))))
        candidates.forget_ended()
    assert candidates.wants(int(own), 77)
    stopped = feedback([77], 200_000, time_ns=1000)
    stopped = replace(stopped, batch=replace(stopped.batch, pid=np.array([own])))
    candidates.begun(stopped.batch)
    candidates.learn_stopped(stopped)
    tids, times = np.array([5, 6], np.int32), np.array([999, 1000])
    assert candidates.elsewhere(np.array([own, own]), tids, times).tolist() == [False, True]
    flat = feedback([77] * 512, 2000)
    candidates.learn_stopped(replace(flat, batch=replace(flat.batch, pid=np.full(512, own))))
    assert not candidates
    assert not candidates.elsewhere(np.array([own]), np.array([6], np.int32), np.array([10**18])).any()


def test_handlers_on_another_stack_are_stopped_for_where_they_are_not_seldom() -> None:
    candidates = StopCandidates()
    away = feedback([1], 1 << 30, cut=True)
    for _ in range(30):
        candidates.learn_copied(away)
        candidates.learn_copied(feedback([1] * 49, 2000))
        assert not candidates
    assert candidates._cases[1].cut == 0
    for _ in range(60):
        candidates.learn_copied(away)
    assert candidates.wants(5, 1)
    candidates.learn_copied(replace(away, batch=replace(away.batch, tid=np.array([2], np.int32))))
    assert not candidates.wants(5, 2)


def test_many_deep_threads_have_their_process_stopped() -> None:
    candidates = StopCandidates()
    candidates.learn_copied(feedback(list(range(1, 17)), 65200, cut=True))
    assert candidates.wants(5, 999)
    candidates.refuse(3)
    assert not candidates.wants(5, 3)
    assert candidates.wants(5, 4)


def test_copies_shrink_soon_to_several_times_what_is_needed_and_later_to_that() -> None:
    size = StackSize(65528, 65528)
    sizes = [65528]
    for _ in range(300):
        size.learn(feedback([1], 2000))
        if wanted := size.choose_change():
            size.set_size(wanted)
            sizes.append(wanted)
    assert sizes == [65528, 4 * 3072, 3072]
    size.learn(feedback([1], 9000))
    assert size.choose_change() == 14 << 10
