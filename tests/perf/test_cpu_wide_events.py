"""Tests of processors that go offline and return: they get new events, and unsampled time is reported."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from contextlib import closing

import pytest

import pyprof
from pyprof.collectors.bpf import kernel_program
from pyprof.collectors.linux import libc
from pyprof.collectors.perf import cpu_wide_events
from pyprof.collectors.perf.cpu_wide_events import ProcessorEvents, choose_scope
from pyprof.collectors.perf.event_attributes import choose_event
from pyprof.collectors.perf.event_manager import EventManager
from pyprof.collectors.perf.per_thread_events import EVERY_THREAD, RingReader
from pyprof.collectors.perf.ring_buffer_records import MIN_RING, list_online_cpus, open_rings
from pyprof.options import CollectOptions
from pyprof.problem_counters import Diagnostics
from tests.bpf.test_pressure import until_ran
from tests.live.support import recording as native
from tests.live.support.ladders import ladder

pytestmark = [pytest.mark.live, pytest.mark.system]

_DISABLE = 0x2401
LOST = "[not sampled: records lost]"
S = 1_000_000_000


def as_when_offline(fd: int) -> None:
    """Disable an event, which has the same effect as its processor going offline."""
    fcntl.ioctl(fd, _DISABLE, 0)


def test_event_that_counts_no_more_is_replaced_as_soon_as_its_processor_is_there() -> None:
    now, offline = [0], set[int]()
    first, *_ = cpus = list_online_cpus()
    event = choose_event(EVERY_THREAD, first, CollectOptions())

    def open_on(cpu: int) -> int:
        if cpu in offline:
            return -errno.ENODEV
        return libc.perf_event_open(event.attr(99, 1024, EVERY_THREAD), EVERY_THREAD, cpu)

    events = ProcessorEvents(cpus, open_on, lambda: now[0])
    try:
        for now[0] in range(3 * S, 10 * S, 3 * S):
            time.sleep(0.01)
            assert events.reopen_events(list_online_cpus) == {}
        before = events.fds.copy()
        offline.add(first)
        as_when_offline(before[first])
        for now[0] in range(12 * S, 16 * S, S):
            assert events.reopen_events(list_online_cpus) == {}, "what it had counted before, and nothing in its place"
        offline.clear()
        now[0] = 18 * S
        assert events.reopen_events(list_online_cpus) == {first: 6 * S}
        assert events.fds.keys() == before.keys()
        time.sleep(0.01)
        now[0] = 21 * S
        assert events.reopen_events(list_online_cpus) == {}
    finally:
        events.close()
    assert not events.fds


def test_processor_that_was_offline_at_first_has_an_event_when_it_comes() -> None:
    now, there = [0], [0]
    event = choose_event(EVERY_THREAD, 0, CollectOptions())
    events = ProcessorEvents(
        [0], lambda cpu: libc.perf_event_open(event.attr(99, 1024, -1), EVERY_THREAD, cpu), lambda: now[0]
    )
    try:
        now[0] = 3 * S
        time.sleep(0.01)
        assert events.reopen_events(lambda: there) == {}
        there.append(list_online_cpus()[-1])
        now[0] = 6 * S
        time.sleep(0.01)
        assert events.reopen_events(lambda: there) == ({there[1]: 3 * S} if there[1] else {})
    finally:
        events.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ProcessorEvents]:
    """All events on processors that collectors open during a test."""
    found: list[ProcessorEvents] = []

    class Known(ProcessorEvents):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            found.append(self)

    for module in (kernel_program, cpu_wide_events):
        monkeypatch.setattr(module, "ProcessorEvents", Known)
    return found


def test_events_that_replace_others_report_processors_that_were_offline_before(
    made: list[ProcessorEvents], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_wide_events, "_CHECK_INTERVAL_NS", 0)
    cpus, options = list_online_cpus(), CollectOptions()
    with closing(open_rings(cpus, MIN_RING, False, False)) as rings:
        scope = choose_scope(os.getpid(), cpus[0], options, everything=True)
        with closing(EventManager(scope, options, RingReader(rings, Diagnostics()))) as manager:
            manager.begin((), list)
            as_when_offline(made[-1].fds[cpus[0]])
            manager._replace(manager.stack_size, ())
            manager._replace(manager.stack_size, ())
            assert len(made) == 3
            assert manager.revive().keys() == {cpus[0]}
            assert manager.revive() == {}


@pytest.mark.parametrize("collector", ["bpf", "perf"])
def test_recording_goes_on_where_a_processor_was_offline_and_says_so(
    collector: str, made: list[ProcessorEvents], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_wide_events, "_CHECK_INTERVAL_NS", 3600 * S)
    monkeypatch.setattr(cpu_wide_events, "_MAX_LOST", 2**62)  # events on threads would follow on a busy machine
    cpu = list_online_cpus()[-1]
    with native.running(ladder("ladder"), "spin", native.LIFE) as program:
        for tid in os.listdir(f"/proc/{program.pid}/task"):
            os.sched_setaffinity(int(tid), {cpu})
        with pyprof.attach(program.pid, collector=collector, rate=499) as recording:
            before = more(recording, 0)
            for events in made:
                with contextlib.suppress(OSError):  # events that were replaced are closed
                    as_when_offline(events.fds[cpu])
            until_ran(program.pid, 1.0)
            monkeypatch.setattr(cpu_wide_events, "_CHECK_INTERVAL_NS", S // 5)
            end = time.monotonic() + 30
            while not said(recording) and time.monotonic() < end:
                recording.peek()
                time.sleep(0.05)
            assert said(recording), "it is seen"
            more(recording, before)
            profile = recording.stop()
    summary = profile.summary
    lost = sum(frame.title == LOST for leaf in set(profile.stack.tolist()) for frame in profile.path(leaf))
    assert lost, "it is marked"
    (note,) = [note for note in summary.notes if note.reason == "processors_came_back"]
    assert dict(note.arguments)["cpus"] == str(cpu)
    assert summary.stops.count == 0


def said(recording: pyprof.Recording) -> bool:
    return any(note.reason == "processors_came_back" for note in recording.peek().summary.notes)


def more(recording: pyprof.Recording, than: int) -> int:
    end = time.monotonic() + 30
    while (count := len(native.names(recording.peek()))) <= than + 20 and time.monotonic() < end:
        time.sleep(0.1)
    assert count > than + 20
    return count
