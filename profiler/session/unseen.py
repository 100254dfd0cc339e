"""Processor time without samples, as a block of its own in the profile and a sentence in the summary.

Most threads and processes that live shorter than the time between two samples are never sampled, records are lost where
the profiler is late, and time in the kernel may be hidden. How much processor time that is is known from the kernel's
accounts. The profile has it below the process that was asked for.
"""

from __future__ import annotations

import numpy as np

from pyprof.collectors.cpu_accounts import NO_ACCOUNT, Unseen, missed, unseen
from pyprof.model.markers import IN_KERNEL, LATE, LOST, NOT_SAMPLED, Mark
from pyprof.model.profile import ThreadInfo
from pyprof.model.reasons import said
from pyprof.model.stacks import marker_key
from pyprof.records import dataclass, replace
from pyprof.session.recorder import Window
from pyprof.session.rows import UNKNOWN

_PIECES = 64
"""Of what is missing, over the time of a window."""
_LATE = 0.1
"""A part of the processor time that fell into missed sampling times is reported from this share of it on."""


def with_unseen(window: Window) -> Window:
    """The window with rows for each process tree whose time was not all sampled. When it was spent is not known: it is
    spread evenly.
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


def _leader(each: Unseen, began: int) -> ThreadInfo:
    """The first thread of a process that itself has no samples."""
    return ThreadInfo(each.pid, each.pid, each.name, each.name, began, began)


def _pieces(ns: int) -> list[int]:
    """Their sum is the same."""
    return [ns * (at + 1) // _PIECES - ns * at // _PIECES for at in range(_PIECES)]


def _found(window: Window) -> tuple[Unseen, ...]:
    return unseen(window.before.accounts, window.after.accounts)


def _parts(each: Unseen) -> list[tuple[Mark, int]]:
    parts = (
        (NOT_SAMPLED, each.short_ns),
        (LATE, each.late_ns),
        (LOST, each.lost_ns),
        (IN_KERNEL, each.kernel_ns),
    )
    return [(mark, ns) for mark, ns in parts if ns > 0]


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds on processors; of them those that no sample stands for, because threads ran too short, records were lost,
    or the kernel may not be sampled; and of the rest those in sampling times that were missed. seldom: of what ran too
    short or had left its processor before the profiler, which waits for one like others, had it; with the times missed.
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
    def sentences(self) -> tuple[str, ...]:
        """What the reader of a picture with blocks should know of them."""
        parts = (
            (self.short, "too_short"),
            (self.seldom, "too_short_or_late"),
            (self.lost, "records_lost"),
            (self.kernel, "kernel_time"),
        )
        return tuple(said(why, time=self._share(part)) for part, why in parts if part)

    @property
    def missed(self) -> tuple[str, ...]:
        """What the reader of any picture should know: there is no block of it."""
        if self.late < _LATE * self.spent or not self.late:
            return ()
        return (said("times_missed", time=self._share(self.late)),)

    def _share(self, part: float) -> str:
        return f"{part:.2f} s of {self.spent:.2f} s of processor time ({100 * part / self.spent:.0f} %)"


def processor_time(window: Window) -> ProcessorTime:
    """By the kernel's accounts."""
    before, after = window.before.accounts, window.after.accounts
    spent = late = 0
    for root, account in after.items():  # one whose tree has ended may be in no later account
        old = before.get(root, NO_ACCOUNT)
        spent += max(account.spent_ns - old.spent_ns, 0)
        late += missed(old, account)[1]
    found = _found(window)
    rows = [(each.short_ns, each.lost_ns, each.kernel_ns, each.late_ns) for each in found] or [(0, 0, 0, 0)]
    short, lost, kernel, seldom = (round(sum(ns) / 1e9, 3) for ns in zip(*rows, strict=True))
    return ProcessorTime(round(spent / 1e9, 3), short, lost, kernel, round(late / 1e9, 3), seldom)
