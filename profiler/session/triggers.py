"""Conditions under which a flight recorder saves its windows: `cpu>80`, `file:/run/dump-me`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from pyprof.collectors.cpu_accounts import read_process_ns
from pyprof.errors import UsageError
from pyprof.records import dataclass

LOOK_S = 1.0
"""Time in seconds between two checks of a flight recorder's trigger conditions. The processor time of a target is
measured over it.
"""
_CPU = re.compile(r"cpu>(\d+(?:\.\d+)?)%?")
_FILE = "file:"


class Condition(Protocol):
    """A trigger condition of a flight recorder, which is checked once a second."""

    def check(self) -> str:
        """Return what was observed if the trigger condition holds, else ""."""
        ...


@dataclass
class _Cpu:
    """The condition that all recorded processes together used more than a share of one processor since the last check.

    Attributes:
        share: The share of one processor.
        pids: Returns the pids of the recorded processes.
    """

    share: float
    pids: Callable[[], Iterable[int]]

    def __post_init__(self) -> None:
        self._before = time.monotonic_ns(), self._spent()

    def _spent(self) -> dict[int, int]:
        return {pid: read_process_ns(pid) for pid in self.pids()}

    def check(self) -> str:
        """Check the condition about processor time. A process that is new or has ended counts only from the next check
        on.
        """
        then, before = self._before
        self._before = now, after = time.monotonic_ns(), self._spent()
        spent = sum(max(ns - before[pid], 0) for pid, ns in after.items() if pid in before)
        if now <= then or spent <= self.share * (now - then):
            return ""
        return f"cpu>{100 * self.share:g}: {100 * spent / (now - then):.0f} % of a processor"


@dataclass(frozen=True, slots=True)
class _File:
    path: str

    def check(self) -> str:
        return f"{self.path} appeared" if os.path.lexists(self.path) else ""


def condition(text: str, pids: Callable[[], Iterable[int]]) -> Condition:
    """Parse a trigger condition such as `cpu>80` or `file:/run/dump-me`.

    Args:
        text: "cpu>N" with N percent of one processor, or "file:PATH".
        pids: Returns the pids of the recorded processes.

    Raises:
        UsageError: The text is no condition.
    """
    if found := _CPU.fullmatch(text.replace(" ", "")):
        return _Cpu(float(found[1]) / 100, pids)
    if text.startswith(_FILE) and len(text) > len(_FILE):
        return _File(text.removeprefix(_FILE))
    raise UsageError(f"{text!r} is not a trigger", "--trigger 'cpu>80', or --trigger file:PATH")


class Triggers:
    """A checker of trigger conditions. It calls fire(observations) when one begins to hold, at most once in pause_s.

    A condition that holds at the start must first become false.
    """

    def __init__(
        self,
        conditions: Iterable[Condition],
        fire: Callable[[str], None],
        pause_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conditions = list(conditions)
        self._held = [True] * len(self._conditions)
        self._fire = fire
        self._pause_s = pause_s
        self._clock = clock
        self._next = clock()
        self._not_before = self._next

    def check_conditions(self) -> None:
        """Check the trigger conditions if LOOK_S has passed. Call it often."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LOOK_S
        found = [condition.check() for condition in self._conditions]
        before, self._held = self._held, [bool(each) for each in found]
        begun = [each for each, held in zip(found, before, strict=True) if each and not held]
        if begun and now >= self._not_before:
            self._not_before = now + self._pause_s
            self._fire(", ".join(begun))
