"""One event on each processor, which is replaced after the processor was offline.

When a processor goes offline, also for a suspend, the kernel takes its events off (perf_event_exit_cpu). It does not
restore them: they no longer count, and nothing reports that. So the events are read from time to time to see if they
count.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.cpu_accounts import LostSamples
from pyprof.collectors.perf.attr import counted_ns
from pyprof.model.reasons import said

_CHECK_INTERVAL_NS = 2_000_000_000

Silent = dict[int, int]
"""Processor -> maximum time in ns for which it had no counting perf event."""


class ProcessorEvents:
    """Perf events on processors, one for each.

    The events must be opened with PERF_FORMAT_TOTAL_TIME_RUNNING.

    Args:
        cpus: The processors.
        open_on: Opens an event on a processor and returns its descriptor, negative if the processor is offline.
        clock: Monotonic clock in nanoseconds.

    Attributes:
        fds: Descriptors by processor.
    """

    def __init__(
        self, cpus: Iterable[int], open_on: Callable[[int], int], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Open a perf event on each processor. If open_on raises an error, none is left open."""
        self.fds: dict[int, int] = {}
        self._open_on = open_on
        self._clock = clock
        self._counted: dict[int, int] = {}
        self._alive_ns: dict[int, int] = {}
        self._looked_ns = clock()
        try:
            for cpu in cpus:
                self._begin(cpu, self._looked_ns)
        except BaseException:
            self.close()
            raise

    def _begin(self, cpu: int, now: int) -> bool:
        fd = self._open_on(cpu)
        if fd < 0:
            return False
        self.fds[cpu] = fd
        self._counted[cpu], self._alive_ns[cpu] = 0, now
        return True

    def reopen_events(self, online: Callable[[], Iterable[int]]) -> Silent:
        """Replace perf events that no longer count, and open events on new processors. This checks at most every two
        seconds.

        Returns:
            Processors with a new event, and for how long each had none.
        """
        now, before = self._clock(), self._looked_ns
        if now < before + _CHECK_INTERVAL_NS:
            return {}
        self._looked_ns = now
        found: Silent = {}
        for cpu in online():
            since = self._alive_ns.get(cpu, before)
            if not self._counts(cpu, now) and self._renew(cpu, now):
                found[cpu] = now - since
        return found

    def _counts(self, cpu: int, now: int) -> bool:
        """Return True if a processor's perf event has counted since the last check."""
        counted = counted_ns(self.fds[cpu]) if cpu in self.fds else 0
        if counted <= self._counted.get(cpu, 0):
            return False
        self._counted[cpu], self._alive_ns[cpu] = counted, now
        return True

    def _renew(self, cpu: int, now: int) -> bool:
        old = self.fds.get(cpu, -1)
        with contextlib.suppress(CollectorRefused, OSError):
            if self._begin(cpu, now):
                if old >= 0:
                    os.close(old)
                return True
        return False

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()


def count_missed_samples(silent: Silent, rate_hz: float, others: LostSamples) -> LostSamples:
    """Return the maximum number of sampling times without perf records because processors were offline.

    If there are any, other samples may be missing too.
    """
    return LostSamples(others.times + sum(silent.values()) * rate_hz / 1e9, False)


def describe_missed_samples(silent: Silent) -> str:
    which = ", ".join(map(str, sorted(silent)))
    return said("processors_came_back", cpus=which, seconds=f"{sum(silent.values()) / 1e9:.1f}")
