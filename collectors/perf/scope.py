"""What the events stand on: on each processor, whatever runs there, or on the threads of the recording.

An event on a thread counts that thread's own time, and one that a new thread inherits begins a period of its own: a
thread that lives shorter than a period is never sampled. On a processor time goes on whoever runs, so that each moment
is as likely as any other; what is not of the recording is left out where the rings are read. That needs
CAP_PERFMON or a kernel.perf_event_paranoid of 0 or less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pyprof.collectors.perf.attr import Event, PerfNotAllowed, choose_event
from pyprof.collectors.perf.event_set import EVERY_THREAD, EventSet, Fork
from pyprof.options import CollectOptions
from pyprof.records import dataclass, replace

_MOST_LOST = 32
_FIRST_NS = 2_000_000_000


class Losses:
    """Are records lost all the time, so that fewer of them must be made? Not those of the first two seconds: tables are
    read then for the first time, and rings wait. Events on threads would find other moments of threads that run
    briefly and often: they count anew at each switch (docs/sampling.md).
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._first_until_ns = clock() + _FIRST_NS
        self._first = 0

    def many(self, lost: int) -> bool:
        """lost: records that found no room so far."""
        if self._clock() < self._first_until_ns:
            self._first = lost
        return lost - self._first > _MOST_LOST


@dataclass(frozen=True, slots=True)
class Scope:
    """event: what is counted. processors: on each processor. everything: all processes belong to the recording.
    on_threads: what can be counted on threads instead. samples: the event makes some, beside records of what happens.
    """

    event: Event
    processors: bool
    everything: bool
    on_threads: Event | None = None
    samples: bool = True

    def narrowed(self) -> Scope:
        """Events on threads: what others do on the processors does not fill the rings then."""
        return Scope(self.on_threads, False, False, samples=self.samples) if self.on_threads is not None else self

    @property
    def filtered(self) -> bool:
        """Do the rings hold what does not belong to the recording?"""
        return self.processors and not self.everything

    def attach(self, events: EventSet, pids: Iterable[int], forks: Callable[[], list[Fork]]) -> None:
        """Raises PerfNotAllowed; ProcessLookupError where none of the processes is there."""
        if self.processors:
            events.attach_machine()
        else:
            events.attach(pids, forks)


def choose_scope(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """The best that is allowed. pid: one of the recording. Raises what choose_event() raises."""
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


def scope_of_records(pid: int, cpu: int, options: CollectOptions, everything: bool) -> Scope:
    """The same, of records without samples. On processors, where that is allowed: an event on a thread makes each of
    its switches longer, by a fifth of a round trip between two threads. Raises what choose_event() raises.
    """
    silent = replace(options, running=False, kernel=False)
    on_thread = choose_event(pid, cpu, silent)
    try:
        on_processor = choose_event(EVERY_THREAD, cpu, silent)
    except PerfNotAllowed:
        return Scope(on_thread, False, False, samples=False)
    return Scope(on_processor, True, everything, on_thread, samples=False)
