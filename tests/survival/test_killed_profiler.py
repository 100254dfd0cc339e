"""Whatever kills the profiler, the target runs on and ends with the right result."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from types import FrameType

import pytest

from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.diagnostics import Diagnostics
from pyprof.options import CollectOptions
from tests.collectors.conftest import Start

ROUNDS = 120


def profiler(pid: int, idle: bool, ready: int = -1) -> int:
    """A forked profiler that samples as fast as it can; its pid. ready: gets a byte when it has begun."""
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        options = CollectOptions(rate_hz=5000, idle=idle, flush_s=0.01)
        for _ in PtraceCollector(pid, options, Diagnostics()).batches():
            if ready >= 0:
                os.write(ready, b"!")
                ready = -1
    finally:
        os._exit(0)


def states(pid: int) -> set[str]:
    found = set()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        found.add(lines["State"][:1])
        assert lines["TracerPid"] == "0"
    return found


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_target_survives_profilers_that_are_killed_at_random_moments(program: Start) -> None:
    target = program("c_survivor")
    rng = random.Random(4)
    for turn in range(ROUNDS):
        child = profiler(target.pid, idle=turn % 4 == 0)
        time.sleep(rng.uniform(0.004, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert states(target.pid) <= set("RSD")
    assert target.finish() == "0 0 0 1\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_target_survives_a_profiler_that_ends_by_a_signal(program: Start, number: int) -> None:
    target = program("c_survivor")
    for _ in range(5):
        begun, ready = os.pipe()
        child = profiler(target.pid, idle=False, ready=ready)
        os.close(ready)
        assert os.read(begun, 1) == b"!"
        os.close(begun)
        time.sleep(0.005)
        os.kill(child, number)
        os.waitpid(child, 0)
        assert states(target.pid) <= set("RSD")
    assert target.finish() == "0 0 0 1\n"


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_the_target_survives_an_interrupt_of_the_sampling_loop(program: Start) -> None:
    """KeyboardInterrupt may come anywhere between two samples; none may leave the target held.

    One that comes while an object is finalized is lost, as Python says; so they come until one has ended the loop. One
    that comes between open() and `with` leaves the file to its finalizer.
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
            assert states(target.pid) <= set("RSD")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert target.finish() == "0 0 0 1\n"
