"""One event on each processor, and another one in its place where the processor was offline.

The kernel takes an event off a processor that goes (perf_event_exit_cpu), for a suspend, too, and does not bring it
back with it: it counts no more, and nothing says so. So it is read now and then whether it counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

from pyprof.collectors.base import CollectorRefused
from pyprof.collectors.cpu_accounts import Lost
from pyprof.collectors.perf.attr import counted_ns
from pyprof.model.reasons import said

_LOOK_NS = 2_000_000_000

Silent = dict[int, int]
"""Processor -> for how many ns at most it had no event that counts."""


class ProcessorEvents:
    """open_on: processor -> descriptor of an event on it, negative where it is offline. fds: by processor. What is read
    of such an event has the time for which it counted (PERF_FORMAT_TOTAL_TIME_RUNNING).
    """

    def __init__(
        self, cpus: Iterable[int], open_on: Callable[[int], int], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Raises what open_on raises; none is left open then."""
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

    def revive(self, online: Callable[[], Iterable[int]]) -> Silent:
        """Processors that have another event now, or came anew. Looks each two seconds at most."""
        now, before = self._clock(), self._looked_ns
        if now < before + _LOOK_NS:
            return {}
        self._looked_ns = now
        found: Silent = {}
        for cpu in online():
            since = self._alive_ns.get(cpu, before)
            if not self._counts(cpu, now) and self._renew(cpu, now):
                found[cpu] = now - since
        return found

    def _counts(self, cpu: int, now: int) -> bool:
        """Has its event counted since the last look?"""
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


def missed(silent: Silent, rate_hz: float, others: Lost) -> Lost:
    """Sampling times without records, at most; that no others are missing holds no more."""
    return Lost(others.times + sum(silent.values()) * rate_hz / 1e9, False)


def note(silent: Silent) -> str:
    which = ", ".join(map(str, sorted(silent)))
    return said("processors_came_back", cpus=which, seconds=f"{sum(silent.values()) / 1e9:.1f}")
