"""Tests of thread lifetimes with reused tids, from the kernel's fork events, /proc, and both."""

from __future__ import annotations

import os
import time

import numpy as np

from pyprof.collectors.thread_start_times import TICK_NS, ThreadLives


def started(lives: ThreadLives, tid: int, *times_ns: int) -> list[int]:
    return [int(at) for at in lives.started(np.full(len(times_ns), tid), np.array(times_ns, np.int64))]


def test_each_fork_of_a_number_is_another_life_however_soon_it_comes() -> None:
    lives = ThreadLives()
    for at in (100, 200, 201):
        lives.note_fork(7, at)
    assert started(lives, 7, 50, 100, 199, 200, 201, 500) == [100, 100, 100, 200, 201, 201]
    assert started(lives, 8, 50) == [0]


def test_a_thread_that_proc_and_the_kernel_tell_of_has_one_life_whoever_comes_first() -> None:
    own = os.getpid()
    seen_first, reported_first = ThreadLives(), ThreadLives()
    began = seen_first.read_proc_start(own)
    seen_first.note_fork(own, began + TICK_NS // 2)
    reported_first.note_fork(own, began + TICK_NS // 2)
    assert seen_first.read_proc_start(own) == began == started(seen_first, own, time.monotonic_ns())[0]
    assert reported_first.read_proc_start(own) == began + TICK_NS // 2
    seen_first.note_fork(own, began + TICK_NS // 2 + 1)
    assert len(seen_first) == 2


def test_a_sample_before_the_record_of_a_fork_is_of_the_thread_before() -> None:
    """Use a start time of /proc, which the kernel rounds down to a clock tick."""
    lives, own = ThreadLives(), os.getpid()
    lives.note_fork(own, 1)
    began = lives.read_proc_start(own)
    lives.note_fork(own, began + TICK_NS // 2)
    assert started(lives, own, began + TICK_NS // 2 - 1, began + TICK_NS // 2) == [1, began]


def test_a_thread_of_the_same_tick_is_another_once_the_one_before_has_ended() -> None:
    lives, own = ThreadLives(), os.getpid()
    first = lives.read_proc_start(own)
    assert lives.read_proc_start(own) == first
    lives.note_end(own, 1)
    assert lives.read_proc_start(own) == first
    lives.note_end(own, first)
    second = lives.read_proc_start(own)
    assert second > first
    assert lives.read_proc_start(own) == second
    assert lives.find_process(own, second) == second


def test_lives_go_some_time_after_their_threads() -> None:
    lives, own, now = ThreadLives(), os.getpid(), time.monotonic_ns()
    nobody = 1 << 22
    for tid in (own, nobody):
        for at in (1, now - 30_000_000_000, now):
            lives.note_fork(tid, at)
    lives.retire()
    assert len(lives) == 2 * 2
    assert started(lives, own, 1, now) == [now - 30_000_000_000, now]


def test_a_number_that_nobody_has_has_no_life() -> None:
    lives = ThreadLives()
    assert lives.read_proc_start(1 << 22) == 0
    lives.note_end(1 << 22, 0)
    assert (len(lives), started(lives, 1 << 22, 5)) == (0, [0])


def test_thread_found_first_in_proc_starts_there_until_its_fork_event() -> None:
    lives, own, before = ThreadLives(), os.getpid(), time.monotonic_ns()
    began = lives.find_seen_start(own)
    assert before <= began <= time.monotonic_ns()
    assert lives.find_seen_start(own) == lives.read_proc_start(own) == began
    lives.note_fork(own, before - 2)
    lives.note_fork(own, before - 2)
    assert started(lives, own, before - 2, before) == [began, began]
    lives.note_fork(own, before)
    assert started(lives, own, before - 2, before - 1, before, began + 1) == [before - 2, before - 2, began, began]
    lives.note_fork(own, began + 1)
    assert started(lives, own, began, began + 1) == [began, began + 1]


def test_a_number_that_is_seen_again_after_its_thread_ended_is_another() -> None:
    lives, own = ThreadLives(), os.getpid()
    first = lives.find_seen_start(own)
    lives.note_end(own, first)
    assert lives.find_seen_start(own) > first
    stale = ThreadLives()
    stale.note_fork(own, 1)
    assert stale.find_seen_start(own) == stale.read_proc_start(own) > 1
