"""The processes of one recording, as its collector asks for them: those that the rules assign to it, now and later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable

from pyprof.collectors.targets import attach_checks
from pyprof.collectors.targets.selection import Selection
from pyprof.errors import PyprofError
from pyprof.records import dataclass


@dataclass(eq=False)
class RuleSelection(Selection):
    """A selection of processes by the agent's rules; chosen returns the current pids."""

    chosen: Callable[[], Collection[int]] = tuple

    def find(self, known: Container[int]) -> Iterable[int]:
        return [pid for pid in self.chosen() if pid not in known and pid not in self.ours]


def selected(chosen: Callable[[], Collection[int]]) -> RuleSelection | None:
    """Return a selection of processes by the agent's rules, or None if no process may be sampled yet.

    Args:
        chosen: Function that returns the current pids from a ProcessTable, which looks at most once a second.
    """
    possible, refused = [], 0
    for pid in chosen():
        try:
            attach_checks.check_readable(pid)
            possible.append(pid)
        except PyprofError:
            refused += 1
    if not possible:
        return None
    sentence = (f"Left out: {refused} processes that may not be sampled.",) if refused else ()
    return RuleSelection(tuple(possible), sentence, True, False, lambda _: False, chosen=chosen)
