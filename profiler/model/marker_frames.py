"""Frames without code of the process: markers of what is missing, kernel frames, and blocked system calls."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pyprof.model.loss_reason_texts import format_message
from pyprof.model.unwind_result import StackEnd

_WOKEN, _NOBODY = "[woken by ", "a timer or an interrupt"
_UNITS = ("", "K", "M", "G", "T")

CUT_TITLES: dict[StackEnd, str] = {
    end: format_message("cut", words=end.words) for end in StackEnd if end is not StackEnd.ROOT
}
CUT_TITLES[StackEnd.UNWINDER] = format_message("in_unwinder")

KERNEL_HALF = 1 << 63
"""First address of the kernel's half of the address space."""
NOT_ONE_BY_ONE = -2
"""Value of Blocked.call, in place of a system call number, for many waits of which only the total time is known."""


class MarkKind(IntEnum):
    CUT = 0  # the frames outside of it are missing
    LEFT_OUT = 1  # frames in the middle of the stack are left out
    MERGE = 2  # interpreter frames could not be merged completely with the native ones
    NOT_SAMPLED = 3  # time without a sample, of threads that ran or waited too short
    LONG_CHAIN = 4  # the outermost interpreter functions are missing
    SCATTERED = 5  # the same, but each is a separate read, so that no option copies them
    LOST = 6  # processor time whose records were lost
    IN_KERNEL = 7  # processor time in the kernel, which may not be sampled
    WOKEN = 8  # the end of a wait; inside it is the stack of the waker
    LOCK = 9  # waits for one lock
    LATE = 10  # time without a sample, of threads that ran too short or left the processor before the profiler got one
    NO_SAMPLE = 11  # processor time of a process of which no sample was taken


class Mark(NamedTuple):
    """The contents of one marker frame: what is missing in the stack, and why.

    Attributes:
        kind: Kind of the marker.
        end: For CUT why the stack ends.
        enough: For CUT how many bytes of stack or frames would be enough; for LONG_CHAIN how many bytes of stack. 0 if
            unknown, or if no size is enough.
        unplaced: For MERGE the number of runs (interpreter frames of one evaluator call) that are placed only by their
            order.
        without_run: For MERGE the number of evaluator calls on the native stack without interpreter frames.
        lacking: For LONG_CHAIN about how many interpreter functions are missing. For SCATTERED, and for LONG_CHAIN if
            `enough` is 0, how many interpreter functions the thread has at least.
        name: For WOKEN the thread that ended the wait, "" if it was no thread; for LOCK the lock.
    """

    kind: MarkKind
    end: StackEnd = StackEnd.ROOT
    enough: int = 0
    unplaced: int = 0
    without_run: int = 0
    lacking: int = 0
    name: str = ""

    def with_name_from_title(self, title: str) -> Mark:
        """Return a copy of this marker with the `name` that its title contains. Files store only the title."""
        if self.kind is MarkKind.WOKEN:
            name = title.removeprefix(_WOKEN).removesuffix("]")
            return self._replace(name="" if name == _NOBODY else name)
        return self._replace(name=title[1:-1]) if self.kind is MarkKind.LOCK else self

    @property
    def title(self) -> str:
        """The label of the marker in all outputs."""
        if self.kind is MarkKind.CUT:
            return _cut_title(self)
        if self.kind is MarkKind.WOKEN:
            return f"{_WOKEN}{self.name or _NOBODY}]"
        if self.kind is MarkKind.LOCK:
            return f"[{self.name}]"
        if self.kind is MarkKind.LONG_CHAIN and not self.enough:
            return format_message("cut_long_chain", count=f"{self.lacking:,}")
        if self.kind is MarkKind.LONG_CHAIN:
            return format_message("cut_chain", count=f"{self.lacking:,}", size=_size(self.enough))
        if self.kind is MarkKind.SCATTERED:
            return format_message("cut_scattered", count=f"{self.lacking:,}")
        return _merge_title(self) if self.kind is MarkKind.MERGE else _TITLES[self.kind]


_TITLES = {
    MarkKind.LEFT_OUT: format_message("frames_left_out"),
    MarkKind.NOT_SAMPLED: format_message("time_too_short"),
    MarkKind.LOST: format_message("time_lost"),
    MarkKind.IN_KERNEL: format_message("time_in_kernel"),
    MarkKind.LATE: format_message("time_too_short_or_late"),
    MarkKind.NO_SAMPLE: format_message("time_without_sample"),
}

LEFT_OUT = Mark(MarkKind.LEFT_OUT)
NOT_SAMPLED = Mark(MarkKind.NOT_SAMPLED)
LOST = Mark(MarkKind.LOST)
IN_KERNEL = Mark(MarkKind.IN_KERNEL)
LATE = Mark(MarkKind.LATE)
NO_SAMPLE = Mark(MarkKind.NO_SAMPLE)
UNSAMPLED = frozenset((NOT_SAMPLED, LOST, IN_KERNEL, LATE, NO_SAMPLE))
"""Markers of blocks of processor time without samples, one for each reason."""
CUTS: dict[int, Mark | None] = {end: None if end is StackEnd.ROOT else Mark(MarkKind.CUT, end) for end in StackEnd}
"""Marker frame for each reason why a stack ends, None for the end of a complete stack."""


def cut_mark(end: StackEnd, needed: int) -> Mark:
    """Return the marker frame of a truncated stack. The limit that it recommends is a power of two, so that many stacks
    share one marker.

    Args:
        end: Why the stack ends.
        needed: Bytes of stack, or frames, that would be enough; 0 if unknown.
    """
    return Mark(MarkKind.CUT, end, 1 << max(needed - 1, 1).bit_length() if needed > 0 else 0)


def long_chain_mark(missing: int, enough: int) -> Mark:
    """Return the marker frame of a truncated chain of interpreter frames.

    Args:
        missing: Number of missing functions, which is rounded to its first digit.
        enough: Bytes of stack that would be enough, 0 if unknown.
    """
    if not enough:
        return Mark(MarkKind.LONG_CHAIN, lacking=missing)
    digit = 10 ** (len(str(missing)) - 1)
    whole = 1 << max(enough - 1, 1).bit_length()
    return Mark(MarkKind.LONG_CHAIN, lacking=(missing + digit // 2) // digit * digit, enough=whole)


def scattered_mark(count: int) -> Mark:
    """Return the marker frame of a chain of interpreter frames that was truncated and that no option can make complete.

    Args:
        count: Minimum number of functions in the chain, which is rounded to its first digit.
    """
    digit = 10 ** (len(str(count)) - 1)
    return Mark(MarkKind.SCATTERED, lacking=count // digit * digit)


def _cut_title(mark: Mark) -> str:
    if mark.enough and mark.end is StackEnd.UNREADABLE:
        return format_message("cut_at_copy", size=_size(mark.enough))
    if mark.enough and mark.end is StackEnd.DEPTH:
        return format_message("cut_at_depth", words=mark.end.words, frames=mark.enough)
    return CUT_TITLES.get(mark.end, "[truncated]")


def _size(size: int) -> str:
    bits = size.bit_length() - 1
    unit = min(bits // 10, len(_UNITS) - 1)
    return f"{1 << bits - 10 * unit}{_UNITS[unit]}"


def _merge_title(mark: Mark) -> str:
    unplaced = f", {mark.unplaced} run{'s' if mark.unplaced > 1 else ''} unplaced" if mark.unplaced else ""
    evaluators = f"{mark.without_run} evaluator{'s' if mark.without_run > 1 else ''}"
    without_run = f", {evaluators} without a run" if mark.without_run else ""
    return format_message("not_matched", unplaced=unplaced, without_run=without_run)


class Blocked(NamedTuple):
    """A frame for a sleeping thread's wait: the system call in which it waits.

    Attributes:
        arch: Name of the architecture.
        state: The letter in /proc/TID/stat.
        call: Number of the system call, -1 outside of one, NOT_ONE_BY_ONE for the total of many waits.
    """

    arch: str
    state: str
    call: int = -1


KernelFrame = int | Blocked
"""Type of a kernel frame: an address in the kernel's half of the address space, or the wait of a sleeping thread
(Blocked).
"""
KernelStack = tuple[KernelFrame, ...]
"""Type of the kernel frames of a sample, innermost first."""
