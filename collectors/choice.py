"""Which collector records a process: by name, or what is allowed here and sees whole stacks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from pyprof.collectors import procfs
from pyprof.collectors.base import Collector, CollectorStats, Feedback
from pyprof.collectors.perf_attr import MOST_STACK, PerfNotAllowed
from pyprof.collectors.perf_event import PerfCollector
from pyprof.collectors.ptrace import PtraceCollector
from pyprof.collectors.selection import Selection
from pyprof.collectors.whole_time import WholeTime
from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import I386, X86_64
from pyprof.model.interpreter import StackReader
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch
from pyprof.options import CollectOptions

MOST_CUT = 0.02
"""Share of stacks, among the last ones, that may be longer than the kernel's copies or go on in another stack."""

_JUDGED, _SURE = 1000, 8

FROM_OUTSIDE = "Sleeping threads were read from outside: none was stopped"


class Interpreters(Protocol):
    """What is known of the interpreters in processes."""

    def reader(self, pid: int) -> StackReader:
        """Copies their frames in stops."""
        ...

    def needs_stops(self, pid: int) -> str:
        """Why stops are wanted, "" if they are not."""
        ...


def open_collector(
    name: str,
    selection: Selection,
    options: CollectOptions,
    diagnostics: Diagnostics,
    interpreters: Interpreters | None = None,
) -> Collector:
    """name: auto, ptrace or perf. auto takes perf_events where they are allowed and can do what is asked; the notes of
    the collector's statistics say which it took and why. Raises what the collectors raise.
    """
    pid = selection.pids[0]
    ids = itertools.count(1).__next__
    readers = interpreters.reader if interpreters else None

    def by_perf() -> PerfCollector:
        return PerfCollector(pid, options, diagnostics, ids=ids, selection=selection)

    def by_stops(note: str) -> Collector:
        return PtraceCollector(pid, options, diagnostics, note=note, ids=ids, readers=readers, selection=selection)

    def from_outside() -> Collector:
        """Sleeping threads only, none of which is stopped."""
        asleep = replace(options, running=False, stop_sleepers=False)
        own = replace(selection)  # its budget of looks is its own
        return PtraceCollector(pid, asleep, diagnostics, note=FROM_OUTSIDE, ids=ids, readers=readers, selection=own)

    def without_stops() -> Collector:
        if not options.running:
            return from_outside()
        perf = by_perf()
        if not options.idle:
            return perf
        try:
            return WholeTime(perf, from_outside())
        except BaseException:
            perf.close()
            raise

    if name == "perf":
        return without_stops()
    if name == "ptrace":
        return by_stops("")
    try:
        arch = procfs.arch(pid)
    except ProcessLookupError:
        arch = X86_64
    if arch not in (X86_64, I386):
        return by_stops(_why(f"it runs {arch.name} code."))
    reason = interpreters.needs_stops(pid) if interpreters and options.running else ""
    if reason:
        return by_stops(_why(reason))
    try:
        found = without_stops()
    except PerfNotAllowed as error:
        return by_stops(_why(f"{error.message} {error.hint}"))
    return found if options.idle else Changing(found, lambda note: by_stops(_why(note)))


def _why(reason: str) -> str:
    return f"Sampled by short stops (ptrace): {reason}"


class Changing:
    """Goes on with another collector when too many stacks of the first are cut short."""

    def __init__(self, first: Collector, second: Callable[[str], Collector]) -> None:
        """second: makes the other one, given the reason; may raise what a collector raises."""
        self._collector = first
        self._second: Callable[[str], Collector] | None = second
        self._before: CollectorStats | None = None
        self._known: dict[tuple[int, int], ThreadInfo] = {}
        self._seen = self._cut = 0
        self._stopping = self._leave = False

    def batches(self) -> Iterator[SampleBatch]:
        for batch in self._collector.batches():
            yield batch
            if self._leave:
                break
        if not self._leave or self._stopping:
            return
        self._known = {(info.pid, info.tid): info for info in self._collector.threads()}
        before = self._collector.stats()
        self._collector.close()
        note = f"{self._cut} of {self._seen} stacks were longer than the kernel copies, or went on in another stack."
        assert self._second is not None
        try:
            self._collector = self._second(note)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            self._second = None
        self._before = before
        if self._stopping:
            self._collector.stop()
        yield from self._collector.batches()

    def learn(self, feedback: Feedback) -> None:
        self._collector.learn(feedback)
        if self._second is None or self._leave:
            return
        missing, base = feedback.missing, feedback.batch.stack.base
        beyond = (missing > 0) & (missing - base > MOST_STACK * 15 // 16)  # less: larger copies are on their way
        self._seen += len(base)
        self._cut += int(np.count_nonzero(beyond))
        self._leave = self._cut >= _SURE and self._cut > MOST_CUT * self._seen
        if self._seen > _JUDGED:
            self._seen = self._cut = 0

    def threads(self) -> list[ThreadInfo]:
        known = self._known | {(info.pid, info.tid): info for info in self._collector.threads()}
        return [known[key] for key in sorted(known)]

    def stats(self) -> CollectorStats:
        now, before = self._collector.stats(), self._before
        if before is None:
            return now
        return CollectorStats(
            ticks=before.ticks + now.ticks,
            pauses=now.pauses,
            skipped=before.skipped + now.skipped,
            unchanged=before.unchanged + now.unchanged,
            blocked=before.blocked + now.blocked,
            errors=now.errors,
            notes=before.notes + now.notes,
        )

    def stop(self) -> None:
        self._stopping = True
        self._collector.stop()

    def close(self) -> None:
        self._collector.close()
