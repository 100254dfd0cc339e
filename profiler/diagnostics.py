"""Counters for what was tolerated, problems of modules, findings. A leaf: everybody may count, nobody prints.

A truncated stack is data, a broken file is an exception, a tolerated oddity is counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from pyprof.records import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something that a module lacks or has wrong, and the command that mends it ("" if none does)."""

    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at before anything is attached. ok: nothing to do. fatal: pyprof will not work. remedy:
    the command that mends it, "" if none does.
    """

    ok: bool
    text: str
    remedy: str = ""
    fatal: bool = False


@dataclass(slots=True)
class Diagnostics:
    """One recording's counters (key -> how often) and its modules' problems (path -> problems).

    Keys are short, stable, lower-case sentences ("thread held by a debugger"): they are printed as they are.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: dict[str, set[Problem]] = field(default_factory=dict)

    def count(self, key: str, by: int = 1) -> None:
        self.counts[key] += by

    def retire(self, paths: Set[str]) -> None:
        """Nothing is mapped from these paths any more: their problems have been reported."""
        self.problems = {path: found for path, found in self.problems.items() if path not in paths}

    def problem(self, path: str, found: Problem) -> None:
        self.problems.setdefault(path, set()).add(found)
