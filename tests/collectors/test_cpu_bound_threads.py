"""Tests of detecting CPU-bound threads, which keep their processor for longer than a stop takes."""

from __future__ import annotations

import pytest

from pyprof.collectors.ptrace.sampled_thread import MIN_STEADY_NS, ProcessorUse

pytestmark = [pytest.mark.live, pytest.mark.system]

MS = 1_000_000


def test_thread_is_steady_once_it_has_run_without_a_wait() -> None:
    thread = ProcessorUse()
    verdicts = []
    for ran_ns in (0, MIN_STEADY_NS - 1, MIN_STEADY_NS, 60 * MS):
        thread.learn(ran_ns, 0)
        verdicts.append(thread.steady)
    assert verdicts == [False, False, True, True]


def test_thread_that_waits_often_is_not_steady_however_long_it_runs() -> None:
    thread = ProcessorUse()
    for at in range(1, 1000):
        thread.learn(at * MS, at)
        assert not thread.steady


def test_what_a_thread_did_before_does_not_count_for_long() -> None:
    thread = ProcessorUse()
    thread.learn(1000 * MS, 1000)
    assert not thread.steady
    thread.learn(1049 * MS, 1000)
    assert not thread.steady, "not known yet"
    thread.learn(1051 * MS, 1000)
    assert thread.steady
    thread.learn(1052 * MS, 1005)
    assert thread.steady, "not known yet"
    thread.learn(1053 * MS, 1020)
    assert not thread.steady, "known early: it waits often"
