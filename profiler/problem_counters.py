"""Counters of tolerated events, problems of modules, and findings of checks.

A truncated stack is data, a broken file raises an exception, and a tolerated irregularity is counted here. Every module
may use this one; it prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from pyprof.lazy_dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A defect of a module's data.

    Attributes:
        text: What is wrong.
        hint: The command that fixes it, "" if there is none.
        reason: Name of its reason (pyprof.model.loss_reason_texts), "" if it is not known.
    """

    text: str
    hint: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check before a recording.

    Attributes:
        ok: True if there is nothing to fix.
        text: What was found.
        hint: The command that fixes it, "" if there is none.
        fatal: True if pyprof does not work like this.
    """

    ok: bool
    text: str
    hint: str = ""
    fatal: bool = False


@dataclass(slots=True)
class Diagnostics:
    """Counters of one recording (number of events by key), and the problems of its modules by path.

    A key is the name of a row in the table of reasons, such as thread_held_by_debugger. A detail may follow the name:
    unwind_table_broken:.eh_frame. pyprof.model.loss_reason_texts has the texts of the keys.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: dict[str, set[Problem]] = field(default_factory=dict)

    def count(self, key: str, by: int = 1) -> None:
        self.counts[key] += by

    def retire(self, paths: Set[str]) -> None:
        """Forget the reported problems of files that are not mapped any more."""
        self.problems = {path: found for path, found in self.problems.items() if path not in paths}

    def problem(self, path: str, found: Problem) -> None:
        self.problems.setdefault(path, set()).add(found)
