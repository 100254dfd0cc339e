"""The interface to unwind rules that a process registers for code without a file (JIT compilers).

Registrations come and go, so a rule is valid at one time only. The unwinder looks rules up in the order of time and
clears its cache when the registrations change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyprof.model.modules import AddressSpace
from pyprof.model.walk import Trust
from pyprof.unwind.rules import FunctionRows, Rule

RuleAt = Callable[[int, bool], Rule | None]
"""Function that finds the unwind rule in force: (lookup pc, pc is not a return address) -> rule, or None."""


class RuntimeRules(Protocol):
    """The protocol of unwind rules of JIT code, for all processes.

    All addresses are those in the process. No method raises.
    """

    def refresh(self, space: AddressSpace) -> None:
        """Read the current registrations of JIT code in an address space.

        The unwinder calls this before it walks samples of the space.
        """
        ...

    def changes(self, space: AddressSpace) -> Sequence[int]:
        """Return the times at which unwind rules of JIT code changed (CLOCK_MONOTONIC ns, ascending)."""
        ...

    def version(self, space: AddressSpace) -> int:
        """Return a number that changes whenever unwind rules of JIT code may have been added or removed."""
        ...

    def is_reserved(self, space: AddressSpace, avma: int) -> bool:
        """Return True if a runtime has reserved an address for JIT code.

        It makes more and more of its reserved memory executable, which no event reports.
        """
        ...

    def is_in_file(self, space: AddressSpace, avma: int) -> bool:
        """Return True if an address lies in a part of a file that holds a runtime's own code, without tables."""
        ...

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        """Return the unwind rows of JIT code that cover a lookup pc at a time and their source, or None.

        Args:
            space: The address space.
            pc: The lookup pc.
            exact: The pc is not a return address.
            time_ns: CLOCK_MONOTONIC time of the sample.
            rule_at: Finds rules of other code, for code that is described as a copy of it.
        """
        ...


class NoRuntimeRules:
    """An empty RuntimeRules, for processes without registered code."""

    def refresh(self, space: AddressSpace) -> None:
        pass

    def changes(self, space: AddressSpace) -> Sequence[int]:
        return ()

    def version(self, space: AddressSpace) -> int:
        return 0

    def is_reserved(self, space: AddressSpace, avma: int) -> bool:
        return False

    def is_in_file(self, space: AddressSpace, avma: int) -> bool:
        return False

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        return None
