"""Tests that a target continues and ends correctly, whatever kills the profiler."""

from __future__ import annotations

import os
import random
import signal
import time
from types import FrameType

import pytest

from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.collectors.conftest import Start
from tests.survival.campaign import CASES, RUNS, Case, begun, kill_profilers, states

pytestmark = [pytest.mark.live, pytest.mark.system]

KILLS = 10
"""Number of kills in each case. `make test-kills` has a thousand."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_target_survives_profilers_that_are_killed_at_random_moments(program: Start, case: Case) -> None:
    target = program(*case.command, prefix=case.prefix)
    assert case.wrong(kill_profilers(case, target, KILLS, random.Random(4))) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_target_survives_a_profiler_that_ends_by_a_signal(program: Start, number: int) -> None:
    target = program("c_survivor")
    for _ in range(5):
        child = begun(target.pid, idle=False)
        time.sleep(0.005)
        os.kill(child, number)
        while os.waitpid(child, os.WNOHANG) == (0, 0):  # Python ignores a KeyboardInterrupt in a finalizer
            time.sleep(0.1)
            os.kill(child, number)
        assert states(target.pid) <= RUNS
    assert target.finish() == "0 0 0 1\n"


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*(gc_callback|__del__|WeakSet):pytest.PytestUnraisableExceptionWarning")
def test_the_target_survives_an_interrupt_of_the_sampling_loop(program: Start) -> None:
    """Raise KeyboardInterrupt anywhere between two samples. No thread may stay stopped.

    Python ignores an exception in a finalizer, in the callback of a weak reference (WeakSet) and in Hypothesis'
    callback, so interrupts repeat until one ends the loop.
    One between open() and `with` leaves the file to its finalizer.
    """
    target = program("c_survivor")

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is PtraceCollector.batches.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(30):
            collector = PtraceCollector(target.pid, CollectOptions(rate_hz=3000, flush_s=0.01), Diagnostics())
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (it may come as soon as the timer runs)
                signal.setitimer(signal.ITIMER_REAL, 0.002 + turn * 0.001, 0.1)
                for _ in collector.batches():
                    pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            collector.close()
            assert states(target.pid) <= RUNS
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert target.finish() == "0 0 0 1\n"
