"""Processor time for which there are no samples, computed from the kernel's accounts of processor time.

Most threads and processes that live shorter than a sampling period are never sampled. Records are lost if the profiler
is late, and kernel time may be hidden. The kernel's accounts say how much processor time each process tree used. Time
that no sample stands for becomes a separate block of the profile, below the process that was selected. The samples of a
process tree are scaled to the rest, because their number is random.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.collectors.cpu_time_accounting import (
    NO_ACCOUNT,
    Account,
    UnsampledTime,
    count_missed_time,
    find_spent_time,
    find_unsampled_time,
)
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.model.marker_frames import IN_KERNEL, LATE, LOST, NOT_SAMPLED, Mark
from pyprof.model.profile import ThreadInfo
from pyprof.model.stacks import marker_key
from pyprof.session.pipeline.sample_windows import Window
from pyprof.session.pipeline.window_row_store import UNKNOWN

_PIECES = 64
"""Number of rows over which the unsampled time of a process tree is spread evenly in a window."""
_LATE = 0.1
"""Share of the processor time in missed sampling times from which on the summary has a note about it."""


def with_unseen(window: Window) -> Window:
    """Add rows for the unsampled time of each process tree to a window: processor time of the kernel's accounts for
    which there are no samples.

    The time is spread evenly over the window, because it is unknown when it was spent.
    """
    found = [(each, mark, piece) for each in _found(window) for mark, ns in _parts(each) for piece in _pieces(ns)]
    if not found:
        return window
    n = len(found)
    times = window.start_ns + window.duration_ns * (2 * np.arange(n) % (2 * _PIECES) + 1) // (2 * _PIECES)
    nodes = [window.stacks.child(0, marker_key(mark)) for _, mark, _ in found]
    leaders = {info.tid: info for info in sorted(window.threads, key=lambda info: info.started) if info.tid == info.pid}
    began = {info.pid: info.process_started for info in sorted(window.threads, key=lambda info: info.process_started)}
    new = {each.pid: _leader(each, began.get(each.pid, 0)) for each, _, _ in found if each.pid not in leaders}
    infos = {**leaders, **new}
    known = {key: number for number, key in window.keys.items()}
    numbers = [known.setdefault(infos[each.pid].key, -1 - at) for at, (each, _, _) in enumerate(found)]
    return replace(
        window,
        threads=(*window.threads, *new.values()),
        keys={number: key for key, number in known.items()},
        time_ns=np.append(window.time_ns, times),
        node=np.append(window.node, np.array(nodes, np.int32)),
        thread=np.append(window.thread, np.array(numbers, np.int32)),
        weight=np.append(window.weight, np.ones(n, np.int64)),
        length_ns=np.append(window.length_ns, np.array([ns for _, _, ns in found], np.int64)),
        state=np.append(window.state, np.zeros(n, np.int32)),
        cpu=np.append(window.cpu, np.full(n, UNKNOWN, np.int32)),
    )


def scale_to_accounts(window: Window, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the values of a window's rows, scaled so that the sum of each process tree is the processor time that the
    kernel has counted for it.

    Samples after the last reading of the kernel's accounts, and process trees without an account, keep their values.

    Args:
        window: The window, with the rows of unsampled time.
        values: Number of samples and nanoseconds of each row, shape (n, 2).
    """
    before, after = window.before.accounts, window.after.accounts
    root_of = {pid: root for root, account in after.items() for pid in account.pids if account.readings}
    numbers = {number: root_of[key.pid] for number, key in window.keys.items() if number >= 0 and key.pid in root_of}
    if not numbers:
        return values
    scaled = values.copy()
    unsampled = {each.pid: each for each in _found(window)}
    roots = np.full(max(max(numbers), int(window.thread.max(initial=0))) + 1, UNKNOWN, np.int64)
    roots[list(numbers)] = list(numbers.values())
    root = np.where((window.length_ns < 0) & (window.thread >= 0), roots[np.maximum(window.thread, 0)], UNKNOWN)
    order = np.argsort(root, kind="stable")
    borders = np.flatnonzero(np.diff(root[order])) + 1
    for rows in np.split(order, borders):
        if len(rows) and (found := int(root[rows[0]])) != UNKNOWN:
            account = after[found]
            rows = rows[window.time_ns[rows] - window.epoch_ns <= account.readings[-1][0]]
            blocks_ns = sum(ns for _, ns in _parts(unsampled[found])) if found in unsampled else 0
            spent_ns = _spent(window, before.get(found, NO_ACCOUNT), account) - blocks_ns
            if (sampled_ns := int(values[rows, 1].sum())) and spent_ns > 0:
                upto = np.rint(np.cumsum(values[rows, 1]) * (spent_ns / sampled_ns)).astype(np.int64)
                scaled[rows, 1] = np.diff(upto, prepend=0)
    return scaled


def _spent(window: Window, old: Account, account: Account) -> int:
    start_ns = window.start_ns - window.epoch_ns
    return find_spent_time(old, account, start_ns, start_ns + window.duration_ns)


def _leader(each: UnsampledTime, began: int) -> ThreadInfo:
    """Return a ThreadInfo for the first thread of a process without samples. The profile shows the unsampled time of
    the process under this thread.
    """
    return ThreadInfo(each.pid, each.pid, each.name, each.name, began, began)


def _pieces(ns: int) -> list[int]:
    """Split a number of nanoseconds into _PIECES nearly equal integers with the same sum."""
    return [ns * (at + 1) // _PIECES - ns * at // _PIECES for at in range(_PIECES)]


def _found(window: Window) -> tuple[UnsampledTime, ...]:
    start_ns = window.start_ns - window.epoch_ns
    span_ns = start_ns, start_ns + window.duration_ns
    return find_unsampled_time(window.before.accounts, window.after.accounts, span_ns)


def _parts(each: UnsampledTime) -> list[tuple[Mark, int]]:
    parts = (
        (NOT_SAMPLED, each.short_ns),
        (LATE, each.late_ns),
        (LOST, each.lost_ns),
        (IN_KERNEL, each.kernel_ns),
    )
    return [(mark, ns) for mark, ns in parts if ns > 0]


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """The processor time of all processes in a window, and how much of it no sample shows, by reason. All values are in
    seconds.

    Attributes:
        spent: All processor time.
        short: Time of threads that ran too short to be sampled.
        lost: Time of lost records.
        kernel: Kernel time that may not be sampled.
        late: Time at which samples were missed because the profiler was late, as far as it belongs to none of the other
            parts.
        seldom: Time of threads that ran too short to be sampled, or were missed because the profiler was late; which of
            both is unknown.
    """

    spent: float
    short: float
    lost: float
    kernel: float
    late: float
    seldom: float = 0.0

    @property
    def not_sampled(self) -> float:
        return round(self.short + self.seldom + self.lost + self.kernel, 3)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes about the blocks of time without samples that the profile shows."""
        parts = (
            (self.short, "too_short"),
            (self.seldom, "too_short_or_late"),
            (self.lost, "records_lost"),
            (self.kernel, "kernel_time"),
        )
        return tuple(self._make_note(name, part) for part, name in parts if part)

    @property
    def missed(self) -> tuple[Note, ...]:
        """The note about processor time in missed sampling times, which no block of the profile shows."""
        if self.late < _LATE * self.spent or not self.late:
            return ()
        return (self._make_note("times_missed", self.late),)

    def _make_note(self, name: str, part_s: float) -> Note:
        spent_s = max(self.spent, part_s)
        return make_note(name, seconds=part_s, spent_s=spent_s, percent=100 * part_s / spent_s)


def processor_time(window: Window) -> ProcessorTime:
    """Compute from the kernel's accounts how much processor time was spent in a window, and how much of it has no
    samples.
    """
    before, after = window.before.accounts, window.after.accounts
    found = _found(window)
    whole = {each.pid for each in found if each.is_whole}
    spent = late = 0
    for root, account in after.items():  # an account whose tree has ended may be missing later
        old = before.get(root, NO_ACCOUNT)
        spent += _spent(window, old, account)
        late += 0 if root in whole else count_missed_time(old, account)[1]
    rows = [(each.short_ns, each.lost_ns, each.kernel_ns, each.late_ns) for each in found] or [(0, 0, 0, 0)]
    short, lost, kernel, seldom = (round(sum(ns) / 1e9, 3) for ns in zip(*rows, strict=True))
    return ProcessorTime(round(spent / 1e9, 3), short, lost, kernel, round(late / 1e9, 3), seldom)
