"""Markers: frames without code that say what a stack lacks."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pyprof.model.reasons import said
from pyprof.model.walk import StackEnd

_WOKEN, _NOBODY = "[woken by ", "a timer or an interrupt"
_UNITS = ("", "K", "M", "G", "T")

CUT_TITLES: dict[StackEnd, str] = {end: said("cut", words=end.words) for end in StackEnd if end is not StackEnd.ROOT}
CUT_TITLES[StackEnd.UNWINDER] = said("in_unwinder")


class MarkKind(IntEnum):
    CUT = 0  # the frames outside it are missing
    LEFT_OUT = 1  # frames in the middle of the stack are left out
    MERGE = 2  # an interpreter's frames and the native ones could not all be matched
    NOT_SAMPLED = 3  # time without a sample, of what ran or waited too short
    LONG_CHAIN = 4  # an interpreter's outermost functions are missing
    SCATTERED = 5  # the same, where each is read on its own, so that no option copies them
    LOST = 6  # processor time whose records were lost
    IN_KERNEL = 7  # processor time in the kernel, which may not be sampled
    WOKEN = 8  # a wait ends; inside it stands the stack of the thread that ended it
    LOCK = 9  # waits for one lock
    LATE = 10  # time without a sample, of what ran too short or had left its processor before the profiler had one
    NO_SAMPLE = 11  # processor time of a process of which no sample was taken


class Mark(NamedTuple):
    """What one marker says.

    end, enough: of CUT, why, and how many bytes of stack or frames would have been enough, 0 where that is not known.
    unplaced, without_run: of MERGE, runs that stand by their order only, activations of the evaluator without a run.
    lacking, enough: of LONG_CHAIN, about how many functions are missing, and how many bytes of stack would copy them.
    enough is 0 where no size would: then lacking is how many functions there are, at least; so it is of SCATTERED.
    name: of WOKEN, who did it, "" for nobody; of LOCK, which.
    """

    kind: MarkKind
    end: StackEnd = StackEnd.ROOT
    enough: int = 0
    unplaced: int = 0
    without_run: int = 0
    lacking: int = 0
    name: str = ""

    def named_by(self, title: str) -> Mark:
        """With the name that its title has: titles are kept where marks are."""
        if self.kind is MarkKind.WOKEN:
            name = title.removeprefix(_WOKEN).removesuffix("]")
            return self._replace(name="" if name == _NOBODY else name)
        return self._replace(name=title[1:-1]) if self.kind is MarkKind.LOCK else self

    @property
    def title(self) -> str:
        """How the marker is labelled, in every output."""
        if self.kind is MarkKind.CUT:
            return _cut_title(self)
        if self.kind is MarkKind.WOKEN:
            return f"{_WOKEN}{self.name or _NOBODY}]"
        if self.kind is MarkKind.LOCK:
            return f"[{self.name}]"
        if self.kind is MarkKind.LONG_CHAIN and not self.enough:
            return said("cut_long_chain", count=f"{self.lacking:,}")
        if self.kind is MarkKind.LONG_CHAIN:
            return said("cut_chain", count=f"{self.lacking:,}", size=_size(self.enough))
        if self.kind is MarkKind.SCATTERED:
            return said("cut_scattered", count=f"{self.lacking:,}")
        return _merge_title(self) if self.kind is MarkKind.MERGE else _TITLES[self.kind]


_TITLES = {
    MarkKind.LEFT_OUT: said("frames_left_out"),
    MarkKind.NOT_SAMPLED: said("time_too_short"),
    MarkKind.LOST: said("time_lost"),
    MarkKind.IN_KERNEL: said("time_in_kernel"),
    MarkKind.LATE: said("time_too_short_or_late"),
    MarkKind.NO_SAMPLE: said("time_without_sample"),
}

LEFT_OUT = Mark(MarkKind.LEFT_OUT)
NOT_SAMPLED = Mark(MarkKind.NOT_SAMPLED)
LOST = Mark(MarkKind.LOST)
IN_KERNEL = Mark(MarkKind.IN_KERNEL)
LATE = Mark(MarkKind.LATE)
NO_SAMPLE = Mark(MarkKind.NO_SAMPLE)
UNSAMPLED = frozenset((NOT_SAMPLED, LOST, IN_KERNEL, LATE, NO_SAMPLE))
"""Processor time that no sample stands for."""
CUTS: dict[int, Mark | None] = {end: None if end is StackEnd.ROOT else Mark(MarkKind.CUT, end) for end in StackEnd}
"""The marker of a stack by its end; None of a whole one."""


def cut_mark(end: StackEnd, needed: int) -> Mark:
    """Of a stack that is cut. needed: bytes of stack, or frames, that would have been enough; 0 if not known. The
    marker names the next power of two, so that many stacks have one marker.
    """
    return Mark(MarkKind.CUT, end, 1 << max(needed - 1, 1).bit_length() if needed > 0 else 0)


def long_chain_mark(lacking: int, enough: int) -> Mark:
    """lacking: functions that are missing, named by their first digit only; enough: bytes, as in cut_mark(), or 0."""
    if not enough:
        return Mark(MarkKind.LONG_CHAIN, lacking=lacking)
    digit = 10 ** (len(str(lacking)) - 1)
    whole = 1 << max(enough - 1, 1).bit_length()
    return Mark(MarkKind.LONG_CHAIN, lacking=(lacking + digit // 2) // digit * digit, enough=whole)


def scattered_mark(count: int) -> Mark:
    """count: functions that there are at least, named by their first digit only."""
    digit = 10 ** (len(str(count)) - 1)
    return Mark(MarkKind.SCATTERED, lacking=count // digit * digit)


def _cut_title(mark: Mark) -> str:
    if mark.enough and mark.end is StackEnd.UNREADABLE:
        return said("cut_at_copy", size=_size(mark.enough))
    if mark.enough and mark.end is StackEnd.DEPTH:
        return said("cut_at_depth", words=mark.end.words, frames=mark.enough)
    return CUT_TITLES.get(mark.end, "[truncated]")


def _size(size: int) -> str:
    bits = size.bit_length() - 1
    unit = min(bits // 10, len(_UNITS) - 1)
    return f"{1 << bits - 10 * unit}{_UNITS[unit]}"


def _merge_title(mark: Mark) -> str:
    unplaced = f", {mark.unplaced} run{'s' if mark.unplaced > 1 else ''} unplaced" if mark.unplaced else ""
    evaluators = f"{mark.without_run} evaluator{'s' if mark.without_run > 1 else ''}"
    without_run = f", {evaluators} without a run" if mark.without_run else ""
    return said("not_matched", unplaced=unplaced, without_run=without_run)
