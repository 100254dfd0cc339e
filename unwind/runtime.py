"""What the walk asks about code that no file describes: the rules that its process has registered.

Registrations come and go, so an answer is of one time; the walk asks in the order of time and forgets its answers
when the mark changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyprof.model.modules import AddressSpace
from pyprof.model.walk import Trust
from pyprof.unwind.rules import FunctionRows, Rule

RuleAt = Callable[[int, bool], Rule | None]
"""(lookup pc, exact) -> the rule that holds there."""


class RuntimeRules(Protocol):
    """Rules for code made at run time, of all processes. Addresses are avma. Never raises."""

    def refresh(self, space: AddressSpace) -> None:
        """Samples of this space are about to be walked: look whether registrations have changed."""
        ...

    def changes(self, space: AddressSpace) -> Sequence[int]:
        """Times (CLOCK_MONOTONIC ns, ascending) at which the description of some address changed."""
        ...

    def version(self, space: AddressSpace) -> int:
        """Another number than before where rules may have come or gone."""
        ...

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        """The rows that cover a lookup pc at a time. rule_at: finds rules elsewhere, for code described as a copy."""
        ...


class NoRuntimeRules:
    """Nothing is registered anywhere."""

    def refresh(self, space: AddressSpace) -> None:
        pass

    def changes(self, space: AddressSpace) -> Sequence[int]:
        return ()

    def version(self, space: AddressSpace) -> int:
        return 0

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        return None
