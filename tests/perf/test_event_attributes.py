"""Tests of events on threads that come and go."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pyprof.collectors.linux import libc
from pyprof.collectors.perf.context_switches import Switches
from pyprof.collectors.perf.cpu_wide_events import Losses, Scope
from pyprof.collectors.perf.event_attributes import Event, PerfNotAllowed, choose_event
from pyprof.collectors.perf.per_thread_events import EventSet
from pyprof.collectors.perf.processes_from_records import TrackedProcesses
from pyprof.collectors.perf.records_to_batches import BatchMaker
from pyprof.collectors.perf.ring_buffer_records import Rings, Scan, list_online_cpus, read_samples, scan_ring
from pyprof.collectors.thread_start_times import Identities
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.support import missing

pytestmark = [pytest.mark.live, pytest.mark.system]

SPINS = "while True: pass"
HANDS_ON = """
import sys, threading
def spin():
    while True: pass
def first():
    sys.stdin.readline()
    threading.Thread(target=spin).start()
thread = threading.Thread(target=first)
thread.start()
print(thread.native_id, flush=True)
thread.join()
print("gone", flush=True)
sys.stdin.readline()
"""


@contextmanager
def started(program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()


class Watched:
    """A set of events with its rings, and the samples of each thread."""

    def __init__(self) -> None:
        try:
            self.event: Event = choose_event(os.getpid(), list_online_cpus()[0], CollectOptions())
        except PerfNotAllowed as error:
            missing(f"needs perf_events: {error.message} {error.hint}")
        self.rings = Rings(list_online_cpus(), 1 << 18)
        self.events = EventSet(self.event, 499, 2048, self.rings)
        self.samples: dict[int, int] = {}

    def update(self) -> None:
        found = Scan()
        for ring in self.rings.rings.values():
            scan_ring(ring, self.rings.words, 2**62, found)
        tids, counts = np.unique(read_samples(self.rings.words, found.samples, False)[0].tid, return_counts=True)
        for tid, count in zip(tids.tolist(), counts.tolist(), strict=True):
            self.samples[tid] = self.samples.get(tid, 0) + count
        found.release_records()
        self.events.update(found.others)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.events.close()
    made.rings.close()


def until(condition: Callable[[], bool], step: Callable[[], None]) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        step()
        if condition():
            return True
        time.sleep(0.02)
    return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_events_of_a_process_that_ended_are_closed_and_its_number_is_free_again(watched: Watched) -> None:
    before = descriptors()
    with started(SPINS) as process:
        before += 2  # the process has two pipes
        watched.events.attach([process.pid], list)
        assert until(lambda: process.pid in watched.samples, watched.update)
        assert descriptors() > before
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert until(lambda: not watched.events.since_ns, watched.update)
        assert descriptors() == before
        assert not watched.events.owns(process.pid)


def test_threads_keep_the_events_that_they_inherited_from_one_that_ended(watched: Watched) -> None:
    with started(HANDS_ON) as process:
        assert process.stdin
        assert process.stdout
        first = int(process.stdout.readline())
        watched.events.attach([process.pid], list)
        before = descriptors()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "gone\n"
        (heir,) = {int(tid) for tid in os.listdir(f"/proc/{process.pid}/task")} - {process.pid, first}
        assert until(lambda: first not in watched.events.since_ns, watched.update)
        assert watched.events.inherited
        watched.samples.clear()
        assert until(lambda: watched.samples.get(heir, 0) > 10, watched.update)
        process.kill()
        process.wait()
        assert until(lambda: descriptors() < before - 1, watched.update)
        assert not watched.events.inherited


def test_other_events_that_cannot_be_had_leave_the_size_as_it_was(watched: Watched) -> None:
    switches = Switches(CollectOptions(idle=True), Diagnostics(), everything=False)
    try:
        with started(SPINS) as process:
            switches.attach_events([process.pid])
        size = switches._size.bytes
        assert not switches._renew(2 * size, [process.pid])
        assert switches._size.bytes == size
    finally:
        switches.close()


def maker(watched: Watched, diagnostics: Diagnostics, ours: set[int]) -> BatchMaker:
    tracked = TrackedProcesses(Identities())
    return BatchMaker(
        watched.rings, Scope(watched.event, False, False), tracked, CollectOptions(), diagnostics, 1, ours
    )


def test_a_process_that_may_not_be_looked_at_is_forgotten_when_it_has_ended(watched: Watched) -> None:
    make = maker(watched, Diagnostics(), {os.getpid()})
    with started(SPINS) as process:
        make.untracked.add(process.pid)
        make.forget_untracked()
        assert make.untracked == {os.getpid(), process.pid}
    make._looked_ns = 0
    make.forget_untracked()
    assert make.untracked == {os.getpid()}


@pytest.mark.parametrize("own", [True, False])
def test_samples_of_unknown_processes_are_counted_except_pyprofs_own(watched: Watched, own: bool) -> None:
    diagnostics = Diagnostics()
    with started(SPINS) as process:
        make = maker(watched, diagnostics, {process.pid} if own else set())
        watched.events.attach([process.pid], list)
        samples = 0

        def take() -> None:
            nonlocal samples
            found = Scan()
            for ring in watched.rings.rings.values():
                scan_ring(ring, watched.rings.words, 2**62, found)
            samples += sum(map(len, found.samples))
            assert not sum(len(batch) for batch in make.convert_scan(found).running)
            found.release_records()

        assert until(lambda: samples > 10, take)
    assert diagnostics.counts["unknown_process_sample"] == (0 if own else samples)


def test_records_that_are_lost_while_tables_are_read_are_no_reason_to_make_fewer() -> None:
    now = 0
    losses = Losses(lambda: now)
    assert not losses.has_too_many(5000)
    now = 3_000_000_000
    assert not losses.has_too_many(5032)
    assert losses.has_too_many(5033)


def test_event_whose_opening_a_signal_interrupts_is_opened_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter((-1, -1, 7))
    monkeypatch.setattr(libc, "_perf_syscall", lambda *_: next(results))
    monkeypatch.setattr(libc, "_get_errno", lambda: errno.EINTR)
    assert libc.perf_event_open(b"", 0, 0) == 7
