"""The calls in V8's code that the stack copies of a batch contain, found before the batch is unwound.

Each frame of V8's code begins with the frame pointer of its caller, and the return address is above that. So a word of
a stack copy that is an address in V8's code has the frame pointer of that code below it. A word that an earlier call
left behind looks alike: what is found here is read ahead, and no frame is made of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.model.address_space import AddressSpace
from pyprof.model.sample_batch import SampleBatch
from pyprof.runtime_code.base import Ranges

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_FUNCTION, _OFFSET = -2, -5
"""Words from the frame pointer to the JSFunction, and to the offset of an interpreted frame, in V8 10.2 to 13.6."""
_NEAR = 1 << 28
"""Maximum distance in bytes between ranges of code that are searched as one."""


class StackCall(NamedTuple):
    """A call in V8's code, or the code that ran.

    Attributes:
        lookup: Address in the code: before the return address, or the pc itself.
        function: The word of the frame that holds the function, 0 if the frame is not in the stack copy.
        offset: The word of the frame that holds the place in an interpreted function.
        lane: A sample with the call.
        fp: Frame pointer of the code, 0 if it is not in the stack copy.
    """

    lookup: int
    function: int
    offset: int
    lane: int
    fp: int


def find_calls(batch: SampleBatch, space: AddressSpace, builtins: Ranges) -> list[StackCall]:
    """Return the different calls in V8's code on the stacks of an address space.

    Args:
        batch: The samples.
        space: The address space.
        builtins: Start and end of V8's code in files.
    """
    made = [(mapping.start, mapping.end) for mapping in space.mappings if mapping.executable and not mapping.path]
    ranges = sorted((*made, *builtins))
    slab = batch.stack
    lanes = np.flatnonzero((batch.space == space.id) & (slab.base % np.uint64(8) == 0))
    if not ranges or not len(lanes) or len(slab.data) < 8:
        return []
    lanes = lanes[np.argsort(slab.offset[lanes], kind="stable")]
    first = slab.offset[lanes] // 8
    words = slab.data[: len(slab.data) // 8 * 8].view("<u8")
    at = _find_addresses(words, ranges)
    place = np.searchsorted(first, at, side="right") - 1
    inside = (place >= 0) & (at > first[place]) & (at < first[place] + slab.size[lanes[place]] // 8)
    at, place = at[inside], place[inside]
    lookup, fp = words[at] - np.uint64(1), words[at - 1]
    running = _within(batch.regs[lanes, batch.arch.pc], ranges)
    lookup = np.concatenate([lookup, batch.regs[lanes[running], batch.arch.pc]])
    fp = np.concatenate([fp, batch.regs[lanes[running], batch.arch.fp]])
    place = np.concatenate([place, running])
    lane = lanes[place]
    slot = first[place] + ((fp - slab.base[lane]) // np.uint64(8)).astype(np.int64)
    last = first[place] + slab.size[lane] // 8 - 2
    known = (fp % np.uint64(8) == 0) & (fp >= slab.base[lane]) & (slot + _OFFSET >= first[place]) & (slot <= last)
    slot = np.where(known, slot, -_OFFSET)
    zero = np.uint64(0)
    held = [np.where(known, words[np.minimum(slot + off, len(words) - 1)], zero) for off in (_FUNCTION, _OFFSET)]
    columns = (lookup, *held, lane, np.where(known, fp, zero))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return list({row[:3]: StackCall(*row) for row in rows}.values())


def _find_addresses(words: U64, ranges: Ranges) -> I64:
    """Return the indexes of the words that are addresses in ranges, which must be ascending."""
    groups = [list(ranges[0])]
    for start, end in ranges[1:]:
        if start - groups[-1][1] < _NEAR:
            groups[-1][1] = max(groups[-1][1], end)
        else:
            groups.append([start, end])
    near = np.zeros(len(words), np.bool_)
    for start, end in groups:
        near |= (words >= np.uint64(start)) & (words < np.uint64(end))
    at = np.flatnonzero(near)
    return at[_within(words[at], ranges)]


def _within(addresses: U64, ranges: Ranges) -> I64:
    """Return the indexes of the addresses in ranges, which must be ascending."""
    starts, ends = np.array(ranges, np.uint64).T
    place = np.searchsorted(starts, addresses, side="right") - 1
    return np.flatnonzero((place >= 0) & (addresses < ends[place]))
