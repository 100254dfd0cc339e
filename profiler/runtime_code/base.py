"""What a way of describing code is, and what all of them are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pyprof.diagnostics import Diagnostics, Problem
from pyprof.model.arch import Arch
from pyprof.model.code import CodeName, Span
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import Trust
from pyprof.objfile.images import Image
from pyprof.records import dataclass
from pyprof.unwind.rules import FunctionRows, Rule

Rows = tuple[FunctionRows, Trust]
RuleAt = Callable[[int, bool], Rule | None]
"""(lookup pc, exact) -> the rule that holds there, of whatever code of the process."""


@dataclass(frozen=True, slots=True)
class CodeScan:
    """One scan of a process for code. before_ns: the time of the scan before, now_ns: of this one (CLOCK_MONOTONIC).

    symbols: (name, avma) of what was looked for in all modules of the space. quick: in between, after a round of
    samples: a list that says that it has not changed is believed.
    """

    space: AddressSpace
    arch: Arch
    before_ns: int
    now_ns: int
    symbols: Sequence[tuple[bytes, int]]
    quick: bool = False


class Descriptions(Protocol):
    """What one source describes, by address and time: a CodeMap, or a CodeTable."""

    changes: list[int]

    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Span[Any]]: ...
    def find(self, pc: int, time_ns: int) -> Span[Any] | None: ...
    def first(self, pc: int) -> Span[Any] | None: ...
    def forget(self, before_ns: int) -> None: ...


class CodeSource(Protocol):
    """One way in which one process describes its code. Nothing raises for what the process has written.

    label: the module of its code is "[jit] LABEL". in_memory: it reads the process's memory, else files. spans: what
    it describes, by address and time.
    """

    label: str
    in_memory: bool

    @property
    def spans(self) -> Descriptions: ...

    def update(self, scan: CodeScan) -> bool:
        """Look again. True where rules may have come or gone."""
        ...

    def rows(self, span: Span[Any], pc: int, exact: bool, rule_at: RuleAt) -> Rows | None:
        """The unwind rows that cover a lookup pc in a span; addresses are avma."""
        ...

    def name(self, span: Span[Any]) -> CodeName | None: ...

    def image(self, span: Span[Any], space: AddressSpace) -> Image | None:
        """An object file in memory that describes the span."""
        ...


class NoImage:
    """The part of a CodeSource that one without object files has."""

    def image(self, span: Span[Any], space: AddressSpace) -> Image | None:
        return None


def report(diagnostics: Diagnostics, label: str, found: Problem) -> None:
    """A problem of a process's list of code."""
    diagnostics.problem(module_path(label), found)


JIT = "[jit] "


def module_path(label: str) -> str:
    """How a profile names the module of code that a source describes."""
    return JIT + label
