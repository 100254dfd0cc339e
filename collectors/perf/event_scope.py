"""The scope of events: each processor with all its threads, or the threads of the recording.

An event on a thread counts that thread's own time. If a new thread inherits it, it begins a new period, so a thread
that lives shorter than a period is never sampled. On a processor the event counts all threads' time, so each moment is
equally likely to be sampled. Samples of other processes are dropped when the rings are read. Events on processors need
CAP_PERFMON or a kernel.perf_event_paranoid of 0 or less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.collectors.perf.attr import Event, PerfNotAllowed, choose_event
from pyprof.collectors.perf.event_set import EVERY_THREAD, EventSet, Fork
from pyprof.options import CollectOptions
from pyprof.records import dataclass, replace

_MAX_LOST = 32
_FIRST_NS = 2_000_000_000


class Losses:
    """A check whether perf records are lost all the time, so that fewer of them must be made.

    Losses in the first two seconds do not count: unwind tables are read then for the first time, and the rings wait.
    Events on threads would sample other moments of threads that run briefly and often, because they count separately at
    each switch (docs/sampling.md).
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._first_until_ns = clock() + _FIRST_NS
        self._first = 0

    def has_too_many(self, lost: int) -> bool:
        """Return True if too many perf records were lost.

        Args:
            lost: Total number of records that found no room in a ring.
        """
        if self._clock() < self._first_until_ns:
            self._first = lost
        return lost - self._first > _MAX_LOST


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of perf events: processors, or threads of the recording.

    Attributes:
        event: The event that makes the samples.
        processors: True if it is on each processor.
        everything: True if all processes belong to the recording.
        on_threads: Event that can be used on threads instead.
        samples: True if the event makes samples in addition to records of forks, mappings and so on.
    """

    event: Event
    processors: bool
    everything: bool
    on_threads: Event | None = None
    samples: bool = True

    def narrow_to_threads(self) -> Scope:
        """Return the scope of perf events on threads, so that other processes do not fill the rings."""
        return Scope(self.on_threads, False, False, samples=self.samples) if self.on_threads is not None else self

    @property
    def filtered(self) -> bool:
        """True if perf's rings contain records that do not belong to the recording."""
        return self.processors and not self.everything

    def attach_events(self, events: EventSet, pids: Iterable[int], forks: Callable[[], list[Fork]]) -> None:
        """Open perf events on the processors or threads of this scope.

        Raises:
            PerfNotAllowed: The kernel permits no event.
            ProcessLookupError: All processes have ended.
        """
        if self.processors:
            events.attach_machine()
        else:
            events.attach(pids, forks)


def choose_scope(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """Return the best scope of perf events that the kernel permits: processors, or threads of the recording.

    Args:
        pid: A process of the recording.
        cpu: Any processor.
        options: Options of the recording.
        everything: True if all processes are recorded.

    Raises:
        PerfNotAllowed: The kernel permits no event.
        ProcessLookupError: The process has ended.
    """
    if everything:
        return Scope(choose_event(EVERY_THREAD, cpu, options), True, True)
    on_thread = choose_event(pid, cpu, options)
    if not options.running:
        return Scope(on_thread, False, False)
    try:
        on_processor = choose_event(EVERY_THREAD, cpu, options)
    except PerfNotAllowed:
        return Scope(on_thread, False, False)
    return Scope(on_processor, True, False, on_thread)


def choose_record_scope(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """Return the best scope of perf events for records without samples.

    Events on processors are preferred. An event on a thread makes each of its switches longer, by a fifth of a round
    trip between two threads.

    Raises:
        PerfNotAllowed: The kernel permits no event.
        ProcessLookupError: The process has ended.
    """
    silent = replace(options, running=False, kernel=False)
    on_thread = choose_event(pid, cpu, silent)
    try:
        on_processor = choose_event(EVERY_THREAD, cpu, silent)
    except PerfNotAllowed:
        return Scope(on_thread, False, False, samples=False)
    return Scope(on_processor, True, everything, on_thread, samples=False)
