"""Markers: frames without code that say what a stack lacks. A marker's pc is a word of its own:

StackEnd | log2(size) << 8      the stack is cut; so much of what the option limits would have been enough, 0: no hint
LEFT_OUT                        frames in the middle of the stack are left out
MERGE_MARK and above            see model.stacks
"""

from __future__ import annotations

from pyprof.model.walk import StackEnd

LEFT_OUT = 0xFF
LEFT_OUT_TITLE = "[frames left out: too many to keep]"
_SHIFT = 8
_UNITS = ("", "K", "M", "G", "T")

MARKERS: dict[StackEnd, str] = {end: f"[truncated: {end.words}]" for end in StackEnd if end is not StackEnd.ROOT}


def cut_mark(end: int, needed: int) -> int:
    """Of a stack that is cut. needed: bytes of stack, or frames, that would have been enough; 0 where nobody knows."""
    return end | (max(needed - 1, 1).bit_length() << _SHIFT if needed > 0 else 0)


def end_of(mark: int) -> StackEnd:
    """Why a stack is cut, of a marker below MERGE_MARK."""
    return StackEnd(mark & 0xFF)


def cut_title(mark: int) -> str:
    """How a cut stack is labelled."""
    if mark == LEFT_OUT:
        return LEFT_OUT_TITLE
    end, bits = end_of(mark), mark >> _SHIFT
    if bits and end is StackEnd.UNREADABLE:
        return f"[truncated: --stack-size {_size(bits)} copies all of it]"
    if bits and end is StackEnd.DEPTH:
        return f"[truncated: {end.words}, --max-depth {1 << bits} is enough]"
    return MARKERS.get(end, "[truncated]")


def _size(bits: int) -> str:
    unit = min(bits // 10, len(_UNITS) - 1)
    return f"{1 << bits - 10 * unit}{_UNITS[unit]}"
