"""Duty cycle of threads that switch thousands of times a second: their events are on for a part of the time only."""

from __future__ import annotations

import math
import os
import time

import numpy as np

from pyprof.collectors.perf.event_set import EVERY_THREAD, FOREVER_NS, EventSet
from pyprof.collectors.perf.records import I64
from pyprof.collectors.switch_events import MIN_ON_NS, Gap

_FAST_HZ = 5000.0
"""Rate of context switches in Hz above which a thread is recorded only for a part of the time."""
_MAX_TURNS = 9
_FIRST_LOOK_S = 0.02


class DutyCycle:
    """Measured rates of context switches, and the threads whose perf events are off for a while because they switch too
    often.

    If events are on the whole machine (`everything`), they are on or off for all threads.

    Attributes:
        paused: Threads whose events are off.
        rests: Number of threads whose events were ever off.
        rates: Switches per second by tid, from a measurement that was not used yet.
        inherited: True if a thread above the limit only has inherited events.
    """

    def __init__(self, everything: bool, processors: int) -> None:
        self.paused: frozenset[int] = frozenset()
        self.rests = 0
        self.rates: dict[int, float] = {}
        self.inherited = False
        self._everything = everything
        self._processors = processors
        self._gap: Gap | None = None
        self._leaves: dict[int, int] = {}
        self._counted_ns = time.monotonic_ns()
        self._began = False
        self._rested: set[int] = set()
        self._turns = 0

    @property
    def off(self) -> frozenset[int]:
        """Threads whose perf events are off, in the form that EventSet.switch() expects."""
        return frozenset({EVERY_THREAD}) if self._gap is not None else self.paused

    def take_gaps(self) -> list[Gap]:
        """Return the spans in which the whole machine's perf events were off, until now or until they were switched on
        again.
        """
        gap = self._gap
        if gap is not None and gap[1] != FOREVER_NS:
            self._gap = None
        return [gap] if gap is not None else []

    def measure_rates(self, tids: I64) -> tuple[dict[int, int], float] | None:
        """Count context switches, and return the counts when the measurement is complete.

        Args:
            tids: Thread of each switch off a processor.

        Returns:
            Number of switches by thread and the duration in seconds, or None while the measurement continues.
        """
        if self.off:
            return None
        found, counts = np.unique(tids, return_counts=True)
        for tid, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._leaves[tid] = self._leaves.get(tid, 0) + count
        now = time.monotonic_ns()
        passed_s = (now - self._counted_ns) / 1e9
        if passed_s < (MIN_ON_NS / 1e9 if self._began else _FIRST_LOOK_S):
            return None
        leaves = self._leaves
        self.rates = {tid: count / passed_s for tid, count in leaves.items()}
        self._began, self._leaves, self._counted_ns = True, {}, now
        return leaves, passed_s

    def pause_threads(self, events: EventSet) -> None:
        """Switch off the perf events of threads that switch more often than the limit."""
        if self._everything:
            off_hz = sum(self.rates.values()) / self._processors
            if off_hz > _FAST_HZ:
                self._gap = (self._counted_ns, FOREVER_NS)
                self._switch_off(events, frozenset({EVERY_THREAD}), off_hz)
            return
        fast = [tid for tid, hz in self.rates.items() if hz > _FAST_HZ]
        own = frozenset(tid for tid in fast if events.owns(tid))
        self.inherited = len(own) < len(fast)
        if own:
            self.paused = own
            self._switch_off(events, own, max(self.rates[tid] for tid in own))

    def _switch_off(self, events: EventSet, tids: frozenset[int], most_hz: float) -> None:
        events.switch(tids, on=False)
        self.rests += len(tids - self._rested)
        self._rested |= tids
        self._turns = min(math.ceil(most_hz / _FAST_HZ), _MAX_TURNS + 1)

    def retire(self) -> None:
        """Forget ended threads whose perf events were off. Only their number is reported."""
        self._rested = {tid for tid in self._rested if tid == EVERY_THREAD or os.path.exists(f"/proc/{tid}")}

    def discard_rates(self) -> None:
        """Discard the measured rates of switches after they were used."""
        self.rates, self.inherited = {}, False

    def resume_threads(self, events: EventSet | None) -> tuple[frozenset[int], int]:
        """Switch the perf events of paused threads on again after enough batches.

        Returns:
            Threads whose events are on again, and from when on.
        """
        if self._turns:
            self._turns -= 1
        off = self.off
        if not off or self._turns or events is None:
            return frozenset(), 0
        events.switch(off, on=True)
        self._leaves, self._counted_ns = {}, time.monotonic_ns()
        if self._gap is not None:
            self._gap = (self._gap[0], self._counted_ns)
            return frozenset(), 0
        self.paused = frozenset()
        return off, self._counted_ns
