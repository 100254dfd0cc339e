"""The number of context switches between two samples of a thread.

All threads together stay within a budget. A thread that switches rarely is sampled each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pyprof.records import dataclass, field

PERIODS = (1, 3, 7, 17, 41, 101, 251, 631, 1583, 3967, 9973)
"""Possible periods of context-switch events. They are odd and mostly prime, so that a thread that waits in two places
in turn is sampled in both.
"""

_TOO_MANY, _TOO_FEW = 1.5, 6
_MIN_S, _FIRST_MEASUREMENT_S = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Periods:
    """The number of context switches of each thread between two of its samples.

    Attributes:
        default: Period of threads that are not in `own`, and of threads that inherit their events.
        own: Maps a tid to its period.
    """

    default: int
    own: Mapping[int, int] = field(default_factory=dict)

    def find_period(self, tid: int) -> int:
        return self.own.get(tid, self.default)

    def is_suitable(self, rates: Mapping[int, float], better: Periods, budget_hz: float) -> bool:
        """Return True if a change to better periods of context-switch events is not worthwhile.

        Args:
            rates: Switches off a processor per second, by tid.
            better: The other periods.
            budget_hz: Samples per second of all threads.
        """
        if sum(hz / self.find_period(tid) for tid, hz in rates.items()) > _TOO_MANY * budget_hz:
            return self == better
        return all(self.find_period(tid) < _TOO_FEW * better.find_period(tid) for tid in rates)


class Tuning:
    """The current periods of context-switch events, and the decision when to change them.

    They change at once after the first measurement. Later they change only after a second of measurement, or if there
    are far too many samples.
    """

    def __init__(self, first: Periods) -> None:
        self.periods = first
        self._counts: dict[int, float] = {}
        self._seconds = self._since_s = 0.0
        self._wait_s, self._hurry_s = 0.0, _FIRST_MEASUREMENT_S

    def count_switches(self, leaves: Mapping[int, int], seconds: float) -> None:
        """Count how often each thread left a processor in some time."""
        for tid, count in leaves.items():
            self._counts[tid] = self._counts.get(tid, 0) + count
        self._seconds += seconds
        self._since_s += seconds

    def choose_periods(self, own: Callable[[int], bool], budget_hz: float) -> Periods | None:
        """Return new periods of context-switch events, or None to keep the current ones.

        Args:
            own: Returns True if a thread can have its own period.
            budget_hz: Samples per second of all threads.
        """
        if not self._seconds:
            return None
        rates = {tid: count / self._seconds for tid, count in self._counts.items()}
        many = sum(hz / self.periods.find_period(tid) for tid, hz in rates.items()) > _TOO_MANY * budget_hz
        if self._since_s < min(self._wait_s, self._hurry_s if many else _MIN_S):
            return None
        self._since_s, self._wait_s = 0.0, _MIN_S
        self._hurry_s = min(2 * self._hurry_s, _MIN_S) if many else _FIRST_MEASUREMENT_S
        if self._seconds >= _MIN_S:  # the weight of older measurements decreases
            self._seconds /= 2
            self._counts = {tid: count / 2 for tid, count in self._counts.items() if count >= 1}
        found = choose_thread_periods(rates, {tid for tid in rates if own(tid)}, budget_hz)
        return None if self.periods.is_suitable(rates, found, budget_hz) else found


def choose_thread_periods(rates: Mapping[int, float], own: Collection[int], budget_hz: float) -> Periods:
    """Return periods of context-switch events that keep all threads within the budget.

    Args:
        rates: Switches off a processor per second, by tid.
        own: Threads that can have their own period. All others, including later ones, share one.
        budget_hz: Samples per second of all threads.
    """
    others_hz = sum(hz for tid, hz in rates.items() if tid not in own)
    default = _at_least(2 * others_hz / budget_hz)
    left_hz = budget_hz - others_hz / default
    mine = sorted((hz, tid) for tid, hz in rates.items() if tid in own)
    share = left_hz
    for place, (hz, _) in enumerate(mine):
        share = left_hz / (len(mine) - place)
        if hz > share:
            break
        left_hz -= hz
    else:
        share = float("inf")
    found = {tid: max(default, _at_least(hz / share)) for hz, tid in mine}
    return Periods(default, {tid: period for tid, period in found.items() if period != default})


def _at_least(wanted: float) -> int:
    return next((period for period in PERIODS if period >= wanted), PERIODS[-1])
