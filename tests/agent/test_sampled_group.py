"""Tests of one collector of the agent: failures are reported, do not end the agent, and lose no processor time."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyprof.collector_control import Stride
from pyprof.errors import AccessDenied
from pyprof.fleet.agent.agent import Agent
from pyprof.fleet.agent.config import parse
from pyprof.fleet.agent.process_group_recording import SampledGroup
from pyprof.fleet.agent.process_table import ProcessTable
from pyprof.fleet.agent.sampling_effort_controller import FIRST_SETTLING
from pyprof.fleet.agent.scale_to_cpu_time import ProcessTime
from pyprof.fleet.agent.windows import WindowClock, WindowPart
from pyprof.model.profile import Profile
from pyprof.session import recording_factory
from tests.agent.test_exact_sums import Simulation, sums, window
from tests.hostile.test_endings import until


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "no room"), AccessDenied("not allowed", "")])
def test_recording_that_cannot_begin_is_said_and_tried_again_later(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail to start a recording, for example because the host cannot create another process.

    The agent keeps running and retries.
    """
    config = parse('[[rule]]\nname = "*"', "x")
    begun, said = [], []

    def fail(*_: object) -> None:
        begun.append(1)
        raise error

    monkeypatch.setattr(recording_factory, "of_selection", fail)
    table, (sampling,) = ProcessTable(config.rules, -1), config.samplings()
    group = SampledGroup(
        sampling,
        config.values,
        table,
        WindowClock(60),
        Stride(),
        lambda *_: None,
        lambda *_: True,
        lambda _, wrong, __: said.append(wrong),
    )
    for _ in range(3):
        group.tend()
        until(lambda: not group.running)
    assert os.getpid() in table.by_pid
    assert (begun, said) == ([1], [error])
    group.close()


def test_recording_that_is_still_opened_is_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse('[[rule]]\nname = "*"', "x")
    begun, enough = threading.Event(), threading.Event()

    def open_slowly(*_: object) -> Opened:
        begun.set()
        enough.wait(60)
        return Opened()

    class Opened:
        def close(self) -> None:
            closed.append(1)

    closed: list[int] = []
    monkeypatch.setattr(recording_factory, "of_selection", open_slowly)
    table, (sampling,) = ProcessTable(config.rules, -1), config.samplings()
    clock = WindowClock(60)
    group = SampledGroup(
        sampling, config.values, table, clock, Stride(), lambda *_: None, lambda *_: True, lambda *_: None
    )
    group.tend()
    assert begun.wait(60)
    group.finish()
    assert group.is_opening
    assert not group.left.is_set()
    enough.set()
    until(lambda: not group.running)
    assert not group.is_opening
    assert closed == [1]


def test_cost_of_opening_the_first_recording_is_not_judged() -> None:
    """A load of 40 makes that a minute, and a reduction of the effort for it would last for five more."""
    agent = Agent.__new__(Agent)
    lane = SimpleNamespace(starts=0, is_opening=True)
    agent._lanes, agent._starts = [lane], 0  # type: ignore[list-item]
    agent._budget = mock.Mock(check_budget=lambda: False)
    agent._on_demand = mock.Mock(under_way=False)
    agent._table = mock.Mock(one_in=1)
    for is_opening, starts in ((True, 0), (False, 1)):
        lane.is_opening, lane.starts = is_opening, starts
        agent._keep_budget()
        agent._budget.exclude_cost.assert_called_with(FIRST_SETTLING)
    agent._budget.exclude_cost.reset_mock()
    agent._keep_budget()
    agent._budget.exclude_cost.assert_not_called()


class Recorded:
    """A recording as SampledGroup sums it: only its span matters."""

    def __init__(self, begun_ns: int) -> None:
        self.span_ns = begun_ns, begun_ns


def test_first_window_begins_before_the_files_of_processes_are_read() -> None:
    host, config = Simulation([7, 5, 3, 2]), parse('[[rule]]\nname = "*"', "x")
    windows: list[Profile] = []
    (sampling,) = config.samplings()
    table, clock = ProcessTable(config.rules, -1), WindowClock(60)
    took = lambda _, profile, __: windows.append(profile)  # noqa: E731
    group = SampledGroup(sampling, config.values, table, clock, Stride(), took, lambda *_: True, lambda *_: None)
    group._clocks = host.clocks
    group._table = SimpleNamespace(matching=lambda _: host.processes)  # type: ignore[assignment]
    now = SimpleNamespace(monotonic_ns=lambda: host.now_ns + 1, monotonic=time.monotonic)
    with mock.patch("pyprof.fleet.agent.process_group_recording.time", now):
        group._begin_clocks()
        start_ns = host.now_ns
        for _ in range(2):
            host.now_ns += Simulation.STEP_NS
            host.clocks.poll(host.processes)
        recording: Any = Recorded(host.now_ns + 1)
        host.now_ns += Simulation.STEP_NS
        host.clocks.read_near_end(host.processes)
        recording.span_ns = recording.span_ns[0], host.now_ns + 1
        group._end_window(recording)
        sampled = window([1])
        group._deliver(recording, sampled, "")
    assert sums(windows[0])[7] == pytest.approx(host.at(host.now_ns) - host.at(start_ns), abs=2)
    assert sampled.start_ns - windows[0].start_ns == 2 * Simulation.STEP_NS
    assert [note.reason for note in windows[0].summary.notes] == ["window_resumed"]


class Renewed:
    """A recording of the agent, from a test that draws other processes while its second window is waited for."""

    failure, waits = None, 0

    def __init__(self, name: str, events: list[str], on_wait: Callable[[], None]) -> None:
        self.running, self.span_ns = True, (0, 0)
        self._name, self._events, self._on_wait = name, events, on_wait

    def wait(self, seconds: float) -> bool:
        self.waits += 1
        self._on_wait()
        return not self.running

    def windows(self, seconds: float) -> Iterator[Profile]:
        yield window([1])

    def packed_part(self) -> tuple[()]:
        return ()

    def watch(self, *_: object, **__: object) -> None:
        pass

    def start(self) -> None:
        self._note("begins")

    def end(self) -> None:
        self._note("ends")
        self.running = False

    def stop(self) -> Profile:
        self.running = False
        return window([1])

    def close(self) -> None:
        self._note("closed")

    def _note(self, event: str) -> None:
        self._events.append(f"{self._name} {event}")


@pytest.mark.parametrize(("left_s", "waits"), [(50, 2), (70, 1)])
def test_recording_of_other_processes_is_open_before_the_present_one_ends(
    left_s: float, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second recording begins at the end of the window, or at a checkpoint if that is more than a minute away."""
    config = parse('[windows]\nevery = "10m"\ndurable = "40s"\n[[rule]]\nname = "*"', "x")
    (sampling,) = config.samplings()
    delivered, events = list[str](), list[str]()
    first: Any = Renewed("first", events, lambda: group.begin_anew())
    second: Any = Renewed("second", events, lambda: second.end() if second.waits > 2 else None)
    clock = SimpleNamespace(left=lambda _: left_s)
    table = ProcessTable(config.rules, -1)
    took = lambda _, __, key: delivered.append(key)  # noqa: E731
    group = SampledGroup(sampling, config.values, table, clock, Stride(), took, lambda *_: True, lambda *_: None)  # type: ignore[arg-type]
    group._clocks, group._recording = None, first

    def open_second(_: object) -> object:
        events.append("second opened")
        return second

    monkeypatch.setattr(group, "_open", open_second)
    assert group._windows(first) is second
    assert group._recording is second
    assert first.waits == waits
    assert events == ["second opened", "first ends", "second begins", "first closed"]
    assert len(delivered) == 1
    assert delivered[0], "the window that ends the recording has its checkpoints"
    assert group._windows(second) is None
    assert group.starts == 1


def test_recording_goes_on_to_the_next_start_if_no_other_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    config, events = parse('[[rule]]\nname = "*"', "x"), list[str]()
    (sampling,) = config.samplings()
    first: Any = Renewed("first", events, lambda: group.begin_anew())
    clock: Any = SimpleNamespace(left=lambda _: 50)
    unused: Any = None
    table = ProcessTable(config.rules, -1)
    group = SampledGroup(
        sampling,
        config.values,
        table,
        clock,
        Stride(),
        lambda *_: None,
        lambda *_: True,
        unused,
    )
    group._clocks, group._recording = None, first
    monkeypatch.setattr(group, "_open", mock.Mock(side_effect=OSError(errno.EMFILE, "too many")))
    assert group._windows(first) is None
    assert (group._recording, group._not_before, events) == (first, 0.0, [])


@given(
    st.lists(st.integers(0, 2 * Simulation.STEP_NS), min_size=60, max_size=60),
    st.lists(st.sampled_from(["part", "lost part", "window", "lost window", "killed"]), max_size=14),
)
def test_time_is_in_the_spool_once_if_a_part_of_the_recording_is_lost(spent_ns: list[int], events: list[str]) -> None:
    """Each event takes a second. A checkpoint may not be written, and the worker may be killed as it sends a window."""
    host, config = Simulation(spent_ns), parse('[[rule]]\nname = "*"', "x")
    windows: list[Profile] = []
    (sampling,) = config.samplings()
    parts: list[ProcessTime] = []
    is_written = True

    def save(_: object, part: WindowPart, __: object) -> bool:
        parts.extend(part.times or () if is_written else ())
        return is_written

    table, clock = ProcessTable(config.rules, -1), WindowClock(60)
    took = lambda _, profile, __: windows.append(profile)  # noqa: E731
    group = SampledGroup(sampling, config.values, table, clock, Stride(), took, save, lambda *_: None)
    group._clocks = host.clocks
    group._table = SimpleNamespace(matching=lambda _: host.processes)  # type: ignore[assignment]
    of_group = SimpleNamespace(monotonic_ns=lambda: host.now_ns + 1, monotonic=time.monotonic)
    in_spool_ns = 0
    recording: Any = None

    def begin() -> None:
        nonlocal recording
        group._begin_clocks()
        recording = Recorded(host.now_ns + 1)

    def pass_step() -> None:
        host.now_ns += Simulation.STEP_NS
        host.clocks.poll(host.processes)
        host.clocks.read_near_end(host.processes)
        recording.span_ns = recording.span_ns[0], host.now_ns + 1

    with mock.patch("pyprof.fleet.agent.process_group_recording.time", of_group):
        begin()
        for event in [*events, "window"]:
            pass_step()
            if event.endswith("part"):
                is_written = event == "part"
                group._end_part(recording)
                group._keep_part((), "")
            elif event.endswith("window"):
                group._end_window(recording)
            if event == "window":
                group._deliver(recording, window([1]), "")
                parts.clear()
            if event in ("lost window", "killed"):
                group._note_failure(recording)
                in_spool_ns += sum(each.ns for each in parts)
                parts.clear()
                pass_step()
                begin()
    in_spool_ns += sum(sums(profile).get(7, 0) for profile in windows)
    assert abs(in_spool_ns - host.at(host.now_ns)) <= 2
