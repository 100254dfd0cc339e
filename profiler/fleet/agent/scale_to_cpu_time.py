"""Processor time of each process by the kernel's clocks, and the scaling of a window's samples to it.

clock_getcpuclockid(3) gives each process a clock that counts its on-CPU time in nanoseconds, including ended threads. A
reading is one system call, also for processes of other users.

The kernel adds the time of a child to its parent when the parent has waited for it. What readings of known children do
not explain of that is the time of children that lived too short to be seen.

A window ends at a time that the collector acknowledges later, so no reading is from exactly that time. The value of a
clock at that time is interpolated between the readings before and after it.

The agent drops samples to keep its budget, and a busy host misses sampling times. The samples of each process are
therefore scaled to the processor time that the process really had. A process without any sample gets a row without
functions, "[not sampled]".
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.collectors.bpf.process_ends import ProcessEnd
from pyprof.collectors.linux.process_cpu_times import (
    TICK_NS,
    ProcessTimes,
    read_boot_ahead_ns,
    read_clock_shift_ns,
    read_process_ns,
    read_times,
)
from pyprof.fleet.agent.process_table import ObservedProcess
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.stack_quality import summary_of_part
from pyprof.model.marker_frames import NO_SAMPLE, UNSAMPLED
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo
from pyprof.model.unwind_result import Trust

_POLL_NS = 1_000_000_000
_REST = 5_000
"""Factor that limits the cost of reading processor clocks: after a poll, the next one waits this many times as long as
the poll took.
"""


class ProcessTime(NamedTuple):
    """Processor time of one process in one window.

    Attributes:
        began_ns: Start of the process by the monotonic clock, accurate to a tick.
        ns: On-CPU time in nanoseconds.
        unread_ns: Time between the last reading and the end of the window if the process has ended and its parent has
            not waited for it, otherwise 0.
        children_ns: On-CPU time of its ended children that no reading of their clocks has counted.
        kin: The labels as one text if the process lived too short to be seen by a search, otherwise "".
    """

    pid: int
    began_ns: int
    name: str
    ns: int
    unread_ns: int = 0
    children_ns: int = 0
    kin: str = ""


def summed_times(times: Iterable[ProcessTime]) -> list[ProcessTime]:
    """Return for each process the sum of its times in consecutive parts of a window."""
    found: dict[tuple[int, int], ProcessTime] = {}
    for each in times:
        key = each.pid, each.began_ns
        before = found.get(key, each._replace(ns=0, unread_ns=0, children_ns=0))
        found[key] = each._replace(
            ns=before.ns + each.ns,
            unread_ns=before.unread_ns + each.unread_ns,
            children_ns=before.children_ns + each.children_ns,
        )
    return list(found.values())


class _Reading(NamedTuple):
    """One reading of a process's processor clock: its value at a monotonic time."""

    at_ns: int
    ns: int


_MAX_CLOCKS = 20_000
"""Maximum number of processes in a window for which each process has a separate clock. Above it, processes that live
too short to be seen share one clock for each name.
"""
_INIT = 1
"""Pid of the process that inherits orphaned processes and waits for them, if no report names another process."""
_MAX_GENERATIONS = 16
"""Maximum number of ended ancestors between a process that has ended and the running process that has waited for
them.
"""
_MAX_DRIFT_NS = 1_000_000_000
"""Maximum change of the shift of all processor clocks (read_clock_shift_ns) during a reading, in nanoseconds. A reading
with a larger change is discarded.
"""
_MIN_READINGS = 2
"""Number of readings of a processor clock that always stay. Once a clock has more, a poll replaces the last reading.
The first two show the clock at the start of the window.
"""


@dataclass(slots=True)
class _Clock:
    """The readings of one process's processor clock in the current window, in order of time, and the last one before
    the window.

    Attributes:
        began_ns: Start of the process by the monotonic clock. It is computed once, so that it can be a key of sums.
        part_ns: Value at the end of the last part of the window, None if no part has it.
        parent: Pid of the parent when the process was found, 0 if the parent had ended.
        waited_ns: Time of children for which the process had waited at the last window's end, or when it was found.
        unseen_ns: Part of the waited time that no reading of a child explains and no window has got. Negative if the
            parent has not waited for a child that has ended.
        kin: Labels as one text if the process lived too short to be seen, otherwise "". None if such a process is in no
            service: its clock only explains a part of its parent's waited time.
    """

    name: str
    began_ns: int
    readings: list[_Reading]
    part_ns: int | None = None
    parent: int = 0
    waited_ns: int = 0
    unseen_ns: int = 0
    kin: str | None = ""

    def at(self, at_ns: int) -> int:
        """Return the processor time of the process at a moment, interpolated between readings. Before the first and
        after the last reading, return the value of that reading.
        """
        after = bisect.bisect_left(self.readings, (at_ns,))
        if after in (0, len(self.readings)):
            return self.readings[max(after - 1, 0)].ns
        (start_ns, low), (end_ns, high) = self.readings[after - 1 : after + 1]
        return low + (high - low) * (at_ns - start_ns) // (end_ns - start_ns)

    def forget_before(self, at_ns: int) -> None:
        """Drop all clock readings before a time, and keep the value at this time as the first one."""
        first = _Reading(max(at_ns, self.readings[0].at_ns), self.at(at_ns))
        self.readings = [first, *(each for each in self.readings if each.at_ns > first.at_ns)]
        self.part_ns = None


class ProcessClocks:
    """The processor clocks of the processes of one recording. All methods may be called from any thread.

    Attributes:
        recent_ns: Processor time of running processes in the last window, by pid and start.
    """

    def __init__(
        self,
        read: Callable[[int], int] = read_process_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        read_waited: Callable[[int], ProcessTimes | None] = read_times,
    ) -> None:
        """Create readers of the kernel's processor clocks of processes.

        Args:
            read: Function that returns the clock of a process in nanoseconds, 0 if there is no such process.
            monotonic_ns: Function that returns the monotonic clock.
            read_waited: Function that returns the time of children that a process has waited for.
        """
        self.recent_ns: dict[tuple[int, int], int] = {}
        self._read, self._monotonic_ns, self._read_waited = read, monotonic_ns, read_waited
        self._clocks: dict[tuple[int, int], _Clock] = {}
        self._new_since_ns = 0
        self._keeps_all = False
        self._part_end_ns = 0
        self._poll_at_ns = 0
        self._window_start_ns = 0
        self._kin: dict[tuple[str, str | None], _Clock] = {}
        self._lock = threading.Lock()

    def begin(self, processes: Mapping[int, ObservedProcess]) -> None:
        """Read the processor clocks of all processes before the first window of a recording."""
        with self._lock:
            self._clocks.clear()
            self._new_since_ns, self._keeps_all, self._part_end_ns = 0, False, 0
            self._read_all(processes)
            self._new_since_ns = self._window_start_ns = self._monotonic_ns()
            self._kin.clear()

    def resume(self, processes: Mapping[int, ObservedProcess]) -> None:
        """Begin a recording whose first window starts where the last window (or part of one) of the recording before it
        ended.
        """
        with self._lock:
            for clock in self._clocks.values():
                if clock.part_ns is not None:
                    later = (each for each in clock.readings if each.at_ns > self._part_end_ns)
                    clock.readings = [_Reading(self._part_end_ns, clock.part_ns), *later]
                    clock.part_ns = None
            self._keeps_all, self._part_end_ns = False, 0
            self._read_all(processes)

    def add_end(self, end: ProcessEnd, kin: str | None, is_known: bool) -> None:
        """Add the final processor time of a process.

        Args:
            end: The process. Without an earlier reading, all of its time is in the window.
            kin: See ProcessTime. None if the process is in no service. Its time must then not be in its parent's time
                either.
            is_known: True if a search had found the process, so that an earlier window may already have a part of its
                time.
        """
        with self._lock:
            clock = self._clocks.get((end.pid, end.start))
            if clock is not None:
                clock.parent = end.parent  # another one than at the start if that has ended
                if end.run_ns >= clock.readings[-1].ns:
                    clock.readings.append(_Reading(end.at_ns, end.run_ns))
                return
            began_ns = end.start * TICK_NS - read_boot_ahead_ns()
            if not self._new_since_ns or (is_known and kin is not None and began_ns < self._window_start_ns):
                return
            if len(self._clocks) >= _MAX_CLOCKS and (same := self._kin.get((end.name, kin))) is not None:
                same.readings.append(_Reading(end.at_ns, same.readings[-1].ns + end.run_ns))
                del same.readings[_MIN_READINGS:-1]
                return
            first = _Reading(min(max(began_ns, self._window_start_ns), end.at_ns - 1), 0)
            readings = [first, _Reading(end.at_ns, end.run_ns)]
            clock = _Clock(end.name, began_ns, readings, parent=end.parent, kin=kin)
            if kin is None and began_ns < self._window_start_ns:  # no window counts its children as its own
                clock.waited_ns = end.waited_ns
            self._clocks[end.pid, end.start] = self._kin[end.name, kin] = clock

    def poll(self, processes: Mapping[int, ObservedProcess]) -> None:
        """Read the processor clocks of all processes if a poll is due. The time of a process that ends soon is then
        known up to this reading.
        """
        if (before_ns := self._monotonic_ns()) >= self._poll_at_ns:
            with self._lock:
                self._read_all(processes)
            after_ns = self._monotonic_ns()
            self._poll_at_ns = after_ns + max(_POLL_NS, _REST * (after_ns - before_ns))

    def read_near_end(self, processes: Mapping[int, ObservedProcess]) -> None:
        """Read the processor clocks of all processes shortly before the window, or a part of it, ends.

        All readings from now on are kept until end_window() or end_part().
        """
        with self._lock:
            self._keeps_all = True
            self._read_all(processes)

    def end_part(self, processes: Mapping[int, ObservedProcess], start_ns: int, end_ns: int) -> list[ProcessTime]:
        """Return the processor time of each process in a part of the current window. The times of all parts can be
        added.

        Args:
            processes: Processes that run now, by pid. Missing ones that ran before have ended.
            start_ns: Monotonic start of the window. The part begins where the one before it ended.
            end_ns: Monotonic end of the part.
        """
        with self._lock:
            self._read_all(processes)
            since_ns, times = max(start_ns, self._part_end_ns), []
            for (pid, _), clock in self._clocks.items():
                before_ns = clock.at(start_ns) if clock.part_ns is None else clock.part_ns
                clock.part_ns = clock.at(end_ns)
                spent_ns = clock.part_ns - before_ns
                unread_ns = max(end_ns - max(clock.readings[-1].at_ns, since_ns), 0)
                if clock.kin is not None and (spent_ns or unread_ns):
                    times.append(ProcessTime(pid, clock.began_ns, clock.name, spent_ns, unread_ns, kin=clock.kin))
                del clock.readings[_MIN_READINGS:-1]
            self._part_end_ns, self._keeps_all = end_ns, False
        return times

    def end_window(self, processes: Mapping[int, ObservedProcess], start_ns: int, end_ns: int) -> list[ProcessTime]:
        """Return the processor time of each process in a window that has ended.

        Args:
            processes: Processes that run now, by pid. Missing ones that ran before have ended.
            start_ns: Monotonic end of the previous window, or start of the recording.
            end_ns: Monotonic end of the window.
        """
        with self._lock:
            self._read_all(processes)
            waited_for = self._count_unseen_children(end_ns)
            times, kept, recent_ns = [], {}, {}
            for (pid, start), clock in self._clocks.items():
                spent_ns = clock.at(end_ns) - clock.at(start_ns)
                unread_ns = max(end_ns - clock.readings[-1].at_ns, 0)
                tail_ns = 0 if (pid, start) in waited_for else unread_ns
                children_ns = max(clock.unseen_ns, 0)
                clock.unseen_ns -= children_ns
                if clock.kin is not None and (spent_ns or tail_ns or children_ns):
                    times.append(
                        ProcessTime(pid, clock.began_ns, clock.name, spent_ns, tail_ns, children_ns, clock.kin)
                    )
                if not unread_ns:
                    recent_ns[pid, start] = spent_ns
                    clock.forget_before(end_ns)
                    kept[pid, start] = clock
            self._clocks, self.recent_ns = kept, recent_ns
            self._new_since_ns, self._keeps_all, self._part_end_ns = start_ns, False, 0
            self._window_start_ns = end_ns
            self._kin.clear()
        return times

    def _count_unseen_children(self, end_ns: int) -> set[tuple[int, int]]:
        """Compute the processor time of children that no search has seen (_Clock.unseen_ns), and return the processes
        for which a parent has waited.
        """
        running = {pid: clock for (pid, _), clock in self._clocks.items() if clock.readings[-1].at_ns >= end_ns}
        for (pid, start), clock in self._clocks.items():
            if pid in running and (found := self._read_waited(pid)) is not None and found.start == start:
                clock.unseen_ns += found.waited_ns - clock.waited_ns
                clock.waited_ns = found.waited_ns
        ended = {pid: clock for (pid, _), clock in self._clocks.items() if pid not in running}
        waited_for = set()
        for (pid, start), clock in self._clocks.items():
            if pid in running:
                continue
            parent = clock.parent
            for _ in range(_MAX_GENERATIONS):
                parent = ended[parent].parent if parent in ended else parent
            above = running.get(parent) or running.get(_INIT)
            if above is not None:
                above.unseen_ns += clock.unseen_ns - clock.readings[-1].ns - clock.waited_ns
                if above.waited_ns:
                    waited_for.add((pid, start))
        return waited_for

    def _read_all(self, processes: Mapping[int, ObservedProcess]) -> None:
        ahead_ns, shift_ns = read_boot_ahead_ns(), read_clock_shift_ns()
        found_ns = {pid: (self._monotonic_ns(), ns) for pid in processes if (ns := self._read(pid))}
        if abs(read_clock_shift_ns() - shift_ns) > _MAX_DRIFT_NS:  # the clocks were set in between
            return
        for pid, (at_ns, shown_ns) in found_ns.items():
            seen, ns = processes[pid], shown_ns - shift_ns
            reading = _Reading(at_ns, ns)
            clock = self._clocks.get((pid, seen.start))
            if clock is None:
                began_ns = seen.start * TICK_NS - ahead_ns
                is_new = 0 < self._new_since_ns < began_ns + TICK_NS
                readings = [_Reading(began_ns, 0), reading] if is_new else [reading]
                clock = self._clocks[pid, seen.start] = _Clock(seen.comm, began_ns, readings)
                if (found := self._read_waited(pid)) is not None and found.start == seen.start:
                    clock.parent, clock.waited_ns = found.parent, 0 if is_new else found.waited_ns
            elif ns >= clock.readings[-1].ns:
                if len(clock.readings) > _MIN_READINGS and not self._keeps_all:
                    clock.readings.pop()
                clock.readings.append(reading)


_ROW_NS = 100_000_000
"""Approximate length in nanoseconds of the profile rows that represent unsampled time."""
_MAX_ROWS = 64
_NO_SAMPLE = Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, NO_SAMPLE.title, NO_SAMPLE)


def with_exact_sums(profile: Profile, times: Sequence[ProcessTime]) -> Profile:
    """Return the window's profile with values scaled so that each process has the processor time that `times` states.

    A process without an entry in `times` was too short-lived to be read; its samples stay as they are. The rest of the
    time for which its parent has waited is unsampled time of the parent. Rows for unsampled time count no sample.

    Args:
        profile: A window of on-CPU samples; its primary value is in nanoseconds.
        times: Processor times in the same window.
    """
    process_of = _processes(profile, times)
    row_process = process_of[profile.thread]
    values = profile.values.copy()
    values[_is_unsampled(profile), 0] = 0
    missing: list[tuple[ProcessTime, int]] = []
    order = np.argsort(row_process, kind="stable")
    ends = np.searchsorted(row_process[order], np.arange(-1, len(times)), "right")
    unseen_ns = sum(each.children_ns for each in times)
    lacking = 1 - min(int(values[row_process < 0, -1].sum()) / unseen_ns, 1) if unseen_ns else 0.0
    for at, each in enumerate(times):
        rows = order[ends[at] : ends[at + 1]]
        total = each.ns + _unread(profile, rows, each.unread_ns)
        if values[rows, -1].any():
            values[rows, -1] = _scaled(values[rows, -1], total)
            total = 0
        if total := total + round(lacking * each.children_ns):
            missing.append((each, total))
    scaled = replace(profile, values=values)
    if missing:
        scaled = _with_rows(scaled, _merge_kin(missing))
    return replace(scaled, summary=summary_of_part(profile.summary, scaled))


def _processes(profile: Profile, times: Sequence[ProcessTime]) -> npt.NDArray[np.int64]:
    """Return for each thread of a profile the index of its process in `times`, (threads,), -1 if there is none."""
    by_pid: dict[int, list[int]] = {}
    for at, each in enumerate(times):
        by_pid.setdefault(each.pid, []).append(at)
    return np.array(
        [
            min(by_pid.get(thread.pid, ()), key=lambda at: abs(times[at].began_ns - thread.process_started), default=-1)
            for thread in profile.threads
        ],
        np.int64,
    )


def _is_unsampled(profile: Profile) -> npt.NDArray[np.bool_]:
    """Return the (n,) mask of the profile's rows that represent unsampled time."""
    is_unsampled = np.array([frame.mark in UNSAMPLED for frame in profile.frames] + [False], np.bool_)
    found: npt.NDArray[np.bool_] = is_unsampled[profile.frame[profile.stack]]
    return found


def _unread(profile: Profile, rows: npt.NDArray[np.int64], unread_ns: int) -> int:
    """Return the sampled time of a process after the last reading of its clock, up to the end of the window, in
    nanoseconds.
    """
    if not unread_ns:
        return 0
    since_ns = profile.start_ns + profile.duration_ns - unread_ns
    return int(profile.values[rows[profile.time_ns[rows] > since_ns], -1].sum())


def _scaled(values: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """Return values scaled so that their sum is exactly the given total."""
    upto = np.cumsum(values)
    found: npt.NDArray[np.int64] = np.diff(np.rint(upto * (total / upto[-1])).astype(np.int64), prepend=0)
    return found


def _merge_kin(missing: Sequence[tuple[ProcessTime, int]]) -> list[tuple[ProcessTime, int]]:
    """Merge the unsampled time of processes that lived too short to be seen: one entry for each name and set of labels.

    The entry has the pid of the last of these processes, because the agent remembers its labels longest.
    """
    found: dict[tuple[object, ...], tuple[ProcessTime, int]] = {}
    for each, total in missing:
        key = (each.name, each.kin) if each.kin else (each.pid, each.began_ns)
        found[key] = each, total + (found[key][1] if key in found else 0)
    return list(found.values())


def _with_rows(profile: Profile, missing: Sequence[tuple[ProcessTime, int]]) -> Profile:
    """Return the profile with additional rows for the unsampled time of some processes. These rows have no
    functions.
    """
    node, frame = len(profile.parent), len(profile.frames)
    threads = [
        ThreadInfo(each.pid, each.pid, each.name, each.name, each.began_ns, each.began_ns) for each, _ in missing
    ]
    thread: list[int] = []
    pieces: list[npt.NDArray[np.int64]] = []
    moments: list[npt.NDArray[np.int64]] = []
    for at, (_, total) in enumerate(missing, len(profile.threads)):
        count = min(max(total // _ROW_NS, 1), _MAX_ROWS)
        thread += [at] * count
        pieces.append(_scaled(np.ones(count, np.int64), total))
        moments.append(profile.start_ns + profile.duration_ns * (2 * np.arange(count) + 1) // (2 * count))
    n = len(thread)
    values = np.zeros((n, profile.values.shape[1]), np.int64)
    values[:, -1] = np.concatenate(pieces)
    return replace(
        profile,
        frames=(*profile.frames, _NO_SAMPLE),
        parent=np.append(profile.parent, np.int32(0)),
        frame=np.append(profile.frame, np.int32(frame)),
        threads=(*profile.threads, *threads),
        time_ns=np.append(profile.time_ns, np.concatenate(moments)),
        stack=np.append(profile.stack, np.full(n, node, np.int32)),
        thread=np.append(profile.thread, np.array(thread, np.int32)),
        values=np.concatenate([profile.values, values]),
        state=None if profile.state is None else np.append(profile.state, np.zeros(n, profile.state.dtype)),
        cpu=None if profile.cpu is None else np.append(profile.cpu, np.full(n, -1, np.int32)),
    )
