"""Tests of stopping a new thread while it is examined: it always continues afterwards."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from pyprof.collectors.linux import procfs
from pyprof.collectors.ptrace.sampled_thread import Outcome
from tests.collectors.stopping import Stopping, stopping
from tests.live.support.recording import running
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

SPIN = 'my $x = 0; $| = 1; print "ready\\n"; $x++ while 1'


def _goes_on(pid: int) -> bool:
    """Return True if the process is not traced and its main thread runs."""
    status, spent = procfs.read_thread_status(pid), procfs.ProcDir(pid)
    before, deadline = spent.stat().worked, time.monotonic() + 10
    while spent.stat().worked == before and time.monotonic() < deadline:
        time.sleep(0.01)
    worked = spent.stat().worked
    spent.close()
    return status["TracerPid"] == "0" and worked > before


def _caught(found: Callable[[Stopping, int], object]) -> tuple[Outcome | None, int, bool]:
    """Stop a process, examine it with found, and return (outcome, number of samples, whether the process continues)."""
    with running(need("perl"), "-e", SPIN, stdin=subprocess.DEVNULL) as program, stopping(program.pid) as stop:
        outcome = None
        stop.stopper.ptrace.block_signals()
        try:
            outcome = stop.stopper.sample_unknown(program.pid, lambda: found(stop, program.pid), 1)  # type: ignore[arg-type,return-value]
        except LookupError:
            pass
        finally:
            deadline = time.monotonic() + 10
            while stop.stopper.stopped_threads and time.monotonic() < deadline:
                stop.stopper.ptrace.wait_sigchld(1_000_000)
                stop.stopper.poll_pending()
            stop.stopper.ptrace.restore_signals()
        lanes = len(stop.builder)
        return outcome, lanes, _goes_on(program.pid)


def test_thread_that_is_caught_stands_still_while_it_is_looked_at_and_has_its_sample() -> None:
    still: list[bool] = []

    def found(stop: Stopping, pid: int) -> object:
        stop.wait_stop(pid)
        still.append(True)
        return stop.target.threads[pid], stop.target.spaces

    outcome, lanes, goes_on = _caught(found)
    assert still == [True]
    assert outcome is Outcome.TAKEN
    assert lanes == 1
    assert goes_on


def _nothing(_: Stopping, __: int) -> object:
    return None


def _error(_: Stopping, __: int) -> object:
    raise LookupError


@pytest.mark.parametrize("found", [_nothing, _error])
def test_thread_that_is_caught_and_cannot_be_looked_at_goes_on(found: Callable[[Stopping, int], object]) -> None:
    outcome, lanes, goes_on = _caught(found)
    assert outcome is (Outcome.UNUSABLE if found is _nothing else None)
    assert lanes == 0
    assert goes_on
