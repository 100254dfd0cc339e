"""Return addresses and interpreter frames of Java in stack copies that wait to be unwound.

A word that is an address in HotSpot's code cache counts as a return address. An interpreter frame holds the caller's
sp, which is an address just above the frame. A word that an earlier call left behind looks alike: what is found is read
ahead, and no frame is made of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.model.address_space import AddressSpace
from pyprof.model.sample_batch import SampleBatch

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_MAX_FRAME = 1 << 17
"""Maximum distance in bytes from an interpreter frame's word with the caller's sp up to that sp."""
_RETURN, _METHOD = 2, -2
"""Offsets of the return address and of the Method from the word with the caller's sp, in words."""


class StackWords(NamedTuple):
    """The code and the methods to which words of stack copies may refer.

    Attributes:
        calls: Time of the last sample by (lookup pc, True if it is the pc itself).
        interpreted: (address of the Method, bytecode pointer) of interpreter frames.
    """

    calls: dict[tuple[int, bool], int]
    interpreted: set[tuple[int, int]]


def read_stack_words(batch: SampleBatch, space: AddressSpace, low: int, high: int, bytecode_slot: int) -> StackWords:
    """Find the addresses of HotSpot's code, and interpreter frames, in the stack copies of an address space.

    Args:
        batch: The samples.
        space: The address space.
        low: Start of HotSpot's code cache.
        high: End of HotSpot's code cache.
        bytecode_slot: Offset of the bytecode pointer in an interpreter frame, relative to rbp.
    """
    slab = batch.stack
    lanes = np.flatnonzero((batch.space == space.id) & (slab.base % np.uint64(8) == 0))
    if not len(lanes) or len(slab.data) < 8 or low >= high:
        return StackWords({}, set())
    lanes = lanes[np.argsort(slab.offset[lanes], kind="stable")]
    first, count = slab.offset[lanes] // 8, slab.size[lanes] // 8
    words = slab.data[: len(slab.data) // 8 * 8].view("<u8")
    is_code = words - np.uint64(low) < np.uint64(high - low)
    at, place = _place(np.flatnonzero(is_code), first, count)
    pcs = batch.regs[lanes, batch.arch.pc]
    running = np.flatnonzero(pcs - np.uint64(low) < np.uint64(high - low))
    times = batch.time_ns[lanes]
    calls: dict[tuple[int, bool], int] = {}
    found = [(times[place], words[at] - np.uint64(1), False), (times[running], pcs[running], True)]
    for when, lookups, exact in found:
        rows = sorted(zip(when.tolist(), lookups.tolist(), strict=True))
        calls |= {(lookup, exact): time_ns for time_ns, lookup in rows}
    # interpreted code is called by generated code, or by call_stub, which is in the code cache, too
    at = at - _RETURN
    pointer = bytecode_slot // 8 + 1
    inside = at + pointer >= first[place]
    at, place = at[inside], place[inside]
    own = slab.base[lanes[place]] + ((at - first[place]) * 8).astype(np.uint64)
    distance = words[at] - own
    at = at[(distance > 8 * _RETURN) & (distance < _MAX_FRAME) & (distance % np.uint64(8) == 0)]
    return StackWords(calls, set(zip(words[at + _METHOD].tolist(), words[at + pointer].tolist(), strict=True)))


def _place(at: I64, first: I64, count: I64) -> tuple[I64, I64]:
    """Return the indexes of words that lie in stack copies, and the copy of each.

    Args:
        at: Indexes of words.
        first: Index of the first word of each copy, ascending.
        count: Number of words of each copy.
    """
    place = np.searchsorted(first, at, side="right") - 1
    inside = (place >= 0) & (at < first[place] + count[place])
    return at[inside], place[inside]
