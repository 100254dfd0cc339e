"""The agent's windows, such as minutes: when they end, their checkpoints, and their division into segments by service.

Windows end at multiples of their length since the epoch, shifted by a random part. The shift differs between agents, so
that hosts do not all work at the same moment. The monotonic clock measures their length.

A window of all processes is divided into segments: one for each service, with the rules' labels on each thread.

Checkpoints are the parts of an unfinished window, as the worker process sent them, with the rules' labels of their
processes. They become segments only if the agent was killed, so they are stored without being parsed. Each has the
on-CPU time of the processes by the kernel's clocks: the sums of a recovered window are exact up to its last checkpoint.
"""

from __future__ import annotations

import io
import json
import os
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pyprof.exporters import pprof
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.agent.health import Conditions
from pyprof.fleet.agent.process_rules import HOST, NOT_RECORDED, RuleVerdict
from pyprof.fleet.agent.process_table import ProcessLabels
from pyprof.fleet.agent.scale_to_cpu_time import ProcessTime, summed_times, with_exact_sums
from pyprof.fleet.agent.spool import SpoolSegment
from pyprof.fleet.wire.segment_names import OTHER, SegmentName
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.confidence_interval import profile_basis
from pyprof.model.analysis.merge import merge
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.loss_reason_texts import Note, make_note, notes_about, parse_note
from pyprof.model.marker_frames import IN_KERNEL, LATE, LOST, NOT_SAMPLED, Mark
from pyprof.model.profile import Profile, ThreadInfo
from pyprof.model.thread_identity import Labels
from pyprof.objfile.byte_source import open_regular
from pyprof.session.worker import response_codec
from pyprof.session.worker.message_channel import Part

_SHIFT = 0.05
"""Maximum shift of a window's end, as a fraction of the window's length."""
_LEAST = 0.25
"""Minimum length of a window, as a fraction of the configured length. A shorter window continues until the next end."""


class WindowClock:
    """The end times of the agent's windows, which are `every` seconds long."""

    def __init__(self, every: float, shift: float | None = None) -> None:
        self.every = every
        self._shift = random.uniform(0, _SHIFT * every) if shift is None else shift

    def left(self, now: float) -> float:
        """Return the seconds from a time (since the epoch) to the next end of a window."""
        found = self.every - (now - self._shift) % self.every
        return found if found >= _LEAST * self.every else found + self.every


_TOLERANCE_NS = 100_000_000
"""Maximum change in nanoseconds between wall clock and monotonic clock that does not count as a step. Such changes come
from scheduling between two readings, or are too small to matter in a window.
"""
_READINGS = 3


class ClockSteps:
    """Steps of the wall clock since this object was created. All methods may be called from any thread.

    The recorder takes account of a step when it ends a window: the window keeps its start time, and the next one has
    the new time. This class finds the steps for the log and the metrics.

    Attributes:
        count: Number of steps.
    """

    def __init__(
        self,
        say: Callable[..., None],
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Read the wall clock and the monotonic clock for the first time.

        Args:
            say: Function that writes a line of the log, one for each step.
            wall_ns: Function that returns the wall clock.
            monotonic_ns: Function that returns the monotonic clock.
        """
        self._say, self._wall_ns, self._monotonic_ns = say, wall_ns, monotonic_ns
        self._lock = threading.Lock()
        self.count = 0
        self._first_ns = self._known_ns = self._ahead_ns()

    def total_ns(self) -> int:
        """Return by how many nanoseconds the wall clock was set forward since the beginning, negative if it was set
        back.
        """
        with self._lock:
            step_ns = self._ahead_ns() - self._known_ns
            if abs(step_ns) > _TOLERANCE_NS:
                self._known_ns += step_ns
                self.count += 1
                self._say("warning", "clock was set", seconds=round(step_ns / 1e9, 1))
            return self._known_ns - self._first_ns

    def _ahead_ns(self) -> int:
        """Return the nanoseconds by which the wall clock is ahead of the monotonic clock. Of several readings, the one
        with the shortest interruption counts.
        """
        readings = []
        for _ in range(_READINGS):
            before, wall, after = self._monotonic_ns(), self._wall_ns(), self._monotonic_ns()
            readings.append((after - before, wall - (before + after) // 2))
        return min(readings)[1]


MIN_GAP_S = 1.0
"""Minimum time in seconds between two windows that is reported as a condition of the agent. Shorter gaps are only
counted.
"""


class UnrecordedTime:
    """The time between the windows of an agent that no window covers, for example during a restart. Used by one thread
    at a time.

    Time in which there was no process to record does not count, nor time around a step of the wall clock. A gap of
    MIN_GAP_S or more begins the condition window_gap.

    Attributes:
        total_ns: Sum since the agent's start, including the time before its first window.
    """

    def __init__(self, conditions: Conditions) -> None:
        """Start to count unrecorded time now."""
        self._conditions = conditions
        self.total_ns = 0
        self._last: dict[object, tuple[int, int]] = {}
        self._steps: dict[object, int] = {}  # the number of steps at the end of each group's last window
        self._since_ns = 0

    def begin(self, since_ns: int) -> None:
        """Start to count from the end of the last window of an earlier agent, since the epoch; 0 if there is no such
        window.
        """
        self._since_ns = since_ns

    def reset(self, group: object) -> None:
        """Note that a recording has no process to record now, so that the time until its next window does not count as
        a gap.
        """
        self._last.pop(group, None)
        self._since_ns = 0

    def add_recovered(self, group: object, end_ns: int) -> None:
        """Count the time up to end_ns as recorded: a recording has failed, but its last window was recovered."""
        if group in self._last:
            self._last[group] = max(self._last[group][0], end_ns), self._last[group][1]
        else:
            self._since_ns = max(self._since_ns, end_ns)

    def add_window(self, group: object, start_ns: int, end_ns: int, steps: int) -> None:
        """Count the unrecorded time between the previous window of a group of processes and this window.

        Args:
            group: Key of the processes that are sampled in the same way.
            start_ns: Start of the window, since the epoch.
            end_ns: End of the window.
            steps: Number of steps of the wall clock until now, some time after the window's end.
        """
        before_ns, steps_before = self._last.get(group, (self._since_ns, steps))
        steps_at_start = self._steps.get(group, 0)
        # a step within a window moves the next window's start, not the end of the window itself
        self._since_ns, self._last[group], self._steps[group] = 0, (end_ns, steps_at_start), steps
        gap_ns = start_ns - before_ns
        if before_ns and steps == steps_before and gap_ns > _TOLERANCE_NS:
            self.total_ns += gap_ns
            if gap_ns >= MIN_GAP_S * 1e9:
                self._conditions.note("window_gap", gap_seconds=round(gap_ns / 1e9, 1))


_MIN_NOTED_GAP_NS = 500_000_000
"""Minimum time without samples at the start of a window, in nanoseconds, that a note in the window mentions."""


def extended(profile: Profile, gap_ns: int) -> Profile:
    """Return a window whose start is moved back by a gap without samples. A note in the summary mentions a long gap."""
    notes = (make_note("window_resumed", seconds=gap_ns / 1e9),) if gap_ns >= _MIN_NOTED_GAP_NS else ()
    summary = replace(profile.summary, notes=(*profile.summary.notes, *notes))
    return replace(
        profile, start_ns=profile.start_ns - gap_ns, duration_ns=profile.duration_ns + gap_ns, summary=summary
    )


MAX_SERVICES = 500
"""Maximum number of services in a window; all others become the service OTHER, since the names come from processes."""
_EVIDENCE = ExportOptions(evidence=True)


def labelled(profile: Profile, verdict: Callable[[int, int], RuleVerdict]) -> Profile:
    """Return a profile whose threads have the labels of their processes, including "service". The function verdict(pid,
    start) decides on the labels. A process without labels gets the host label of the other processes.
    """
    verdicts = [verdict(*thread.process_key) for thread in profile.threads]
    hosts = sorted({label for found in verdicts for label in found.labels if label[0] == HOST})
    threads = [
        replace(thread, labels=found.labels or (*hosts[:1], ("service", OTHER)))
        for thread, found in zip(profile.threads, verdicts, strict=True)
    ]
    return replace(profile, threads=tuple(threads))


_SUM_MARGIN, _SUM_SLACK_NS = 1.1, 2_000_000_000
"""Factor and nanoseconds by which the total processor time of a window may exceed its length times the processors.
Processes that ended may have run a little earlier, and clocks are read one after the other.
"""


def excess_seconds(profile: Profile, processors: int) -> float:
    """Return by how many seconds the processor time of a window exceeds what its processors can do, 0 if it does not.

    Args:
        profile: The window of all processes of a host.
        processors: Number of processors of the host.
    """
    if profile.value_types[-1].type != "cpu":
        return 0.0
    possible_ns = _SUM_MARGIN * profile.duration_ns * processors + _SUM_SLACK_NS
    return max(profile.total - possible_ns, 0) / 1e9


_MIN_UNATTRIBUTED, _MIN_UNATTRIBUTED_NS = 0.03, 100_000_000
"""Minimum share of a service's processor time, and minimum nanoseconds, that must be missing in a window to matter."""


def find_unattributed(profile: Profile, unattributed_ns: Mapping[str, int]) -> dict[str, float]:
    """Return the shares of their processor time that services lack in a window, for those that lack much.

    Args:
        profile: The labelled window.
        unattributed_ns: Time of short processes that is in no service, by the service of their nearest known ancestor.
    """
    services = [dict(thread.labels)["service"] for thread in profile.threads]
    spent_ns = Counter[str]()
    for thread, ns in zip(profile.thread.tolist(), profile.values[:, -1].tolist(), strict=True):
        spent_ns[services[thread]] += ns
    shares = {service: ns / (ns + spent_ns[service]) for service, ns in unattributed_ns.items() if service and ns}
    return {
        service: share
        for service, share in shares.items()
        if share > _MIN_UNATTRIBUTED and unattributed_ns[service] > _MIN_UNATTRIBUTED_NS
    }


def count_processes(profile: Profile, selected: Set[int], recorded: Set[int]) -> dict[str, int]:
    """Return the fields of a window's log line that count processes. A field that has the name of a metric means the
    same.

    Args:
        profile: The window, with the exact processor time also of processes that have ended.
        selected: Pids that the rules select at the end of the window.
        recorded: Selected pids that the budget does not leave out.
    """
    return {
        "processes": len(selected),
        "processes_left_out": len(selected - recorded),
        "processes_ended": len({thread.pid for thread in profile.threads} - selected),
    }


def segments(
    profile: Profile,
    processes: Mapping[str, Set[int]],
    window: str = "",
    has_exact_sums: bool = True,
    labels: Mapping[str, Labels] = MappingProxyType({}),
) -> list[SpoolSegment]:
    """Split a labelled window into one segment for each service.

    Args:
        processes: Pids of the services that had processes. A service without samples gets a segment with the value
            zero, which distinguishes it from a service that was not recorded.
        window: Key of the window, from which the keys of the segments are made (SegmentName.new()).
        has_exact_sums: True if sums are measured by the kernel's clocks, False if they are estimates from samples.
        labels: Labels of a process of each service, for a segment without samples.
    """
    found: dict[str, list[int]] = {}
    for index, thread in enumerate(profile.threads):
        service = dict(thread.labels)["service"]
        found.setdefault(service if service in found or len(found) < MAX_SERVICES else OTHER, []).append(index)
    for service in processes:
        if len(found) < MAX_SERVICES:
            found.setdefault(service, [])
    return [
        _segment(
            profile if indices else _make_zero_profile(profile, labels.get(service, ())),
            service,
            indices or [0],
            processes.get(service, frozenset()),
            window,
            has_exact_sums,
        )
        for service, indices in sorted(found.items())
    ]


def _make_zero_profile(profile: Profile, labels: Labels) -> Profile:
    """Return a profile of the same time span with a single value of zero, for a service without samples. It has the
    labels of one of the service's processes.
    """
    one = np.zeros(1, np.int32)
    return replace(
        profile,
        threads=(ThreadInfo(0, 0, "", "", labels=labels),),
        time_ns=np.array([profile.start_ns], np.int64),
        stack=one,
        thread=one,
        values=np.zeros((1, len(profile.value_types)), np.int64),
        state=None,
        cpu=None,
    )


def _segment(
    profile: Profile, service: str, threads: list[int], pids: Set[int], window: str, has_exact_sums: bool
) -> SpoolSegment:
    notes = notes_about(profile.summary.notes, pids | {profile.threads[index].pid for index in threads})
    profile = replace(profile, summary=replace(profile.summary, notes=notes))
    wanted = np.zeros(len(profile.threads), np.bool_)
    wanted[threads] = True
    part = selected(profile, wanted[profile.thread] if len(profile.thread) else np.zeros(0, np.bool_))
    part = _with_basis(_with_own_notes(part), has_exact_sums)
    out = io.BytesIO()
    pprof.write(_used(replace(part, title=service)), out, _EVIDENCE)
    return SpoolSegment(SegmentName.new(service, profile.start_ns + profile.duration_ns, window), out.getvalue())


_NOTED_MARKS = {"too_short": NOT_SAMPLED, "too_short_or_late": LATE, "records_lost": LOST, "kernel_time": IN_KERNEL}
"""Notes of a recording about processor time without samples, and for each the marker of the rows that have this time.
"""


def _with_own_notes(profile: Profile) -> Profile:
    """Return a service's profile with notes about its own processor time without samples. They replace the window's
    notes, which are about the time of all services.
    """
    if profile.value_types[-1].type != "cpu":
        return profile
    mark_ns = Counter[Mark | None]()
    for row, ns in zip(profile.frame[profile.stack].tolist(), profile.values[:, -1].tolist(), strict=True):
        mark_ns[profile.frames[row].mark if row >= 0 else None] += ns
    notes: dict[Note, None] = {}
    for note in profile.summary.notes:
        if note.reason == "times_missed":  # it is not known of which process
            of = dict(note.arguments)
            note = make_note("times_missed_of_all", seconds=of["seconds"], spent_s=of["spent_s"], percent=of["percent"])
        elif note.reason in _NOTED_MARKS:
            if not (own_ns := mark_ns[_NOTED_MARKS[note.reason]]):
                continue
            percent = 100 * own_ns / profile.total
            note = make_note(note.reason, seconds=own_ns / 1e9, spent_s=profile.total / 1e9, percent=percent)
        notes[note] = None
    return replace(profile, summary=replace(profile.summary, notes=tuple(notes)))


def _with_basis(profile: Profile, has_exact_sums: bool) -> Profile:
    """Return a service's profile with a note that says how accurate the shares of functions in it are.

    Args:
        profile: On-CPU samples of one service in one window.
        has_exact_sums: True if the sums are those of the kernel's clocks, so that only the shares within a process are
            estimates.
    """
    if (basis := profile_basis(profile)) is None:
        return profile
    samples, width = basis.samples, 100 * basis.half_width
    if has_exact_sums:
        note = make_note("shares_by_samples", samples=samples, percent=100 * basis.sampled, width=width)
    else:
        note = make_note("sums_by_samples", samples=samples, width=width)
    return replace(profile, summary=replace(profile.summary, notes=(*profile.summary.notes, note)))


def _used(profile: Profile) -> Profile:
    """Return a profile from which object files without any frame are removed."""
    used = sorted({frame.module for frame in profile.frames if frame.module >= 0})
    index: Mapping[int, int] = {module: at for at, module in enumerate(used)} | {-1: -1}
    return replace(
        profile,
        modules=tuple(profile.modules[module] for module in used),
        frames=tuple(replace(frame, module=index[frame.module]) for frame in profile.frames),
    )


_BEGINS = b"pyprof part of a window\n"
_MAX_BYTES = 1 << 30


class WindowPart(NamedTuple):
    """The contents of one checkpoint of an unfinished window: what was recorded since the previous one.

    Attributes:
        data: The samples as Recording.packed_part() returned them.
        times: On-CPU time of each process by the kernel's clocks, None if they are not read.
        unsampled_ns: Time before the first sample of the window whose on-CPU time is in `times`.
    """

    data: Sequence[Part]
    times: Sequence[ProcessTime] | None
    unsampled_ns: int = 0


def packed(part: WindowPart, notes: Sequence[Note], labels: Iterable[ProcessLabels]) -> bytes:
    """Encode a checkpoint file of an unfinished window.

    Args:
        part: The part of the window to save.
        notes: Notes for the summary.
        labels: Labels of the processes.
    """
    sets: dict[object, int] = {}
    processes = [(each.pid, each.began_ns, sets.setdefault(each.labels, len(sets))) for each in labels]
    data = b"".join(part.data)
    head = {
        "layout": response_codec.layout(),
        "checksum": zlib.crc32(data),
        "sizes": [memoryview(each).nbytes for each in part.data],
        "times": part.times,
        "unsampled_ns": part.unsampled_ns,
        "notes": [note.to_json() for note in notes],
        "labels": list(sets),
        "processes": processes,
    }
    return b"".join((_BEGINS, json.dumps(head).encode(), b"\n", data))


@dataclass(frozen=True, slots=True)
class _SavedPart:
    """The decoded contents of a checkpoint file of an unfinished window.

    Attributes:
        verdicts: Start times and labels of processes, by pid.
        times: On-CPU time of each process by the kernel's clocks; None if they were not read, or if an older version
            wrote the file.
        unsampled_ns: Time before the first sample of the window whose on-CPU time is in `times`.
    """

    profile: Profile
    verdicts: Mapping[int, Sequence[tuple[int, RuleVerdict]]]
    times: Sequence[ProcessTime] | None
    unsampled_ns: int = 0


def _unpacked(data: bytes) -> _SavedPart:
    """Decode a checkpoint file of an unfinished window.

    Raises:
        ValueError: The file was not written by packed() of this version. Broken contents may raise other exceptions.
    """
    head, _, rest = data.removeprefix(_BEGINS).partition(b"\n")
    if not data.startswith(_BEGINS):
        raise ValueError("no part of a window")
    fields: Mapping[str, Any] = json.loads(head)
    if fields["layout"] != response_codec.layout():
        raise ValueError("by another version")
    parts, at = [], 0
    for size in fields["sizes"]:
        parts.append(memoryview(rest)[at : at + size])
        at += size
    if at != len(rest) or zlib.crc32(rest) != fields["checksum"]:
        raise ValueError("not what was written")
    profile = response_codec.unpacked_profile(parts)
    sets = [tuple((str(key), str(value)) for key, value in each) for each in fields["labels"]]
    verdicts: dict[int, list[tuple[int, RuleVerdict]]] = {}
    for pid, began_ns, of in fields["processes"]:
        verdicts.setdefault(int(pid), []).append((int(began_ns), RuleVerdict(labels=sets[of])))
    times = fields.get("times")
    if times is not None:
        times = [
            ProcessTime(int(pid), int(began), str(name), int(ns), int(unread), int(children), "".join(map(str, kin)))
            for pid, began, name, ns, unread, children, *kin in times
        ]
    summary = replace(
        profile.summary, notes=(*profile.summary.notes, *(parse_note(**each) for each in fields["notes"]))
    )
    return _SavedPart(replace(profile, summary=summary), verdicts, times, int(fields.get("unsampled_ns", 0)))


def _read(path: str) -> bytes:
    with open(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise ValueError("too large")
        return file.read()


def restored(paths: Sequence[str], window: str, broken: Callable[[], None]) -> Sequence[SpoolSegment]:
    """Return the segments of an unfinished window from its checkpoint files, for Spool (see spool.Restore)."""
    parts: list[_SavedPart] = []
    for path in paths:
        try:
            parts.append(_unpacked(_read(path)))
        except Exception:  # noqa: BLE001 - the agent must start whatever is wrong with a file
            broken()
    try:
        return _segments(parts, window) if parts else ()
    except Exception:  # noqa: BLE001 - for example, they are not from one window
        broken()
        return ()


def _segments(parts: Sequence[_SavedPart], window: str) -> Sequence[SpoolSegment]:
    """Return the segments of a window from its decoded checkpoints. The sums are exact if all of them have the on-CPU
    times of their processes.
    """
    whole = merge(part.profile for part in parts)
    has_exact_sums = all(part.times is not None for part in parts)
    if has_exact_sums:
        whole = extended(whole, max(part.unsampled_ns for part in parts))
        whole = with_exact_sums(whole, summed_times(time for part in parts for time in part.times or ()))

    def verdict(pid: int, started_ns: int) -> RuleVerdict:
        known = [each for part in parts for each in part.verdicts.get(pid, ())] or [(0, NOT_RECORDED)]
        return min(known, key=lambda each: abs(each[0] - started_ns))[1]

    summary = replace(whole.summary, notes=(*whole.summary.notes, make_note("window_recovered")))
    return segments(labelled(replace(whole, summary=summary), verdict), {}, window, has_exact_sums)
