"""What an interpreter was doing in a thread when its sample was taken: runs of its frames, and where they belong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Protocol

from pyprof.model.modules import AddressSpace


class SampleState(IntFlag):
    """What else is known of a sample."""

    INTERPRETED = 1  # the thread belongs to an interpreter
    HOLDS_LOCK = 2  # it holds the interpreter's global lock
    COLLECTING = 4  # it collects garbage
    NATIVE_CUT = 8  # a run of the interpreter's frames lies beyond the end of a native stack that is cut short
    NO_PLACE = 16  # a run's marker lies in no unwound frame
    NO_MARKER = 32  # a run has no marker
    NO_RUN = 64  # an activation of the evaluator has no run
    BROKEN_CHAIN = 128  # the interpreter's own chain could not be read to its end
    LONG_CHAIN = 256  # the chain is longer than what is copied


PARTIAL: dict[SampleState, str] = {
    SampleState.NATIVE_CUT: "python frames beyond a native stack that is cut short",
    SampleState.NO_PLACE: "python frames on no native frame",
    SampleState.NO_MARKER: "python frames without a mark on the C stack",
    SampleState.NO_RUN: "evaluator on the stack without python frames",
    SampleState.BROKEN_CHAIN: "chain of python frames not whole",
    SampleState.LONG_CHAIN: "more python frames than --stack-size copies",
}
"""Why the frames of an interpreter and the native ones could not all be matched, as it is counted."""


@dataclass(frozen=True, slots=True)
class Run:
    """The frames that one activation of the evaluator runs, innermost first.

    marker: an address on the activation's own C stack, 0 where this version keeps none. frames: of FrameKey.word.
    waits: the thread does not name this activation itself, it was found on its C stack.
    """

    marker: int
    frames: tuple[int, ...]
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A thread's runs, innermost first. problem: why it may lack frames, "" if it is whole. evaluators: where the
    evaluator's parts begin, as far as symbols say. marked: this version marks the C stack. marks: all marks, innermost
    first, where it is not known which of them belongs to which run. others: the C stack may hold activations that are
    not in the chain, outside it (those of other greenlets). lacking: about so many of the outermost frames are missing,
    because more is copied of no chain; enough: bytes of --stack-size that would copy all of it.
    """

    runs: tuple[Run, ...]
    state: SampleState
    problem: str
    evaluators: tuple[int, ...]
    marked: bool
    marks: tuple[int, ...] = ()
    others: bool = False
    lacking: int = 0
    enough: int = 0


Span = tuple[int, int]
"""(avma, bytes)"""

Gather = Callable[[Sequence[Span]], memoryview]
"""Reads spans one behind the other into one buffer, which the next call overwrites; shorter where one cannot be read:
the rest is missing from there on."""


class StackReader(Protocol):
    """Reads an interpreter's frames of the threads of one process, together with each thread's stack.

    look, then for each sample copy (while the thread stands still) and take (when it runs again). A copy that was only
    made to know better what to read at the next one is followed by learn.
    """

    def look(self, space: AddressSpace, tids: Collection[int]) -> None:
        """Before samples are taken: the modules and threads as they are now."""
        ...

    def copy(self, tid: int, stack: memoryview, base: int, gather: Gather) -> None:
        """Read what the frames of a thread need. stack: its stack copy, which stood at base."""
        ...

    def learn(self) -> None:
        """What the copy that was made last says of the next one."""
        ...

    def take(self) -> Chain | None:
        """Of the thread that was copied last; None if it has no frames of the interpreter and never had."""
        ...
