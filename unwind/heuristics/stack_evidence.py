"""What a sample must show of a deep stack that was walked before, so that it may have that stack's frames.

Most frames of a deep recursion are those before them again: same return addresses, same sizes. What is outside the
sample's copy and repeats so may be taken to be as it was, if parts of it are seen. Where the chain does not repeat, at
the recursion's callers above all, nothing else tells that it is the same one: each such word must be seen with the
sample itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.model.sample import Piece

U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_MOST_PERIOD = 8
_LEAST_RUN = 64
"""So many frames in a row must be equal to those one period inside them. Fewer are equal by chance."""


def repeated(pc: U64, sp: U64) -> Mask:
    """Which frames of a chain, innermost first, follow from the frames inside them."""
    size = np.diff(sp, append=sp[-1:])
    found = np.zeros(len(pc), np.bool_)
    for period in range(1, min(_MOST_PERIOD, len(pc) // 2) + 1):
        same = (pc[period:] == pc[:-period]) & (size[period:] == size[:-period])
        ends = np.append(np.flatnonzero(~same), len(same))
        begins = np.append(0, ends[:-1] + 1)
        for begin, end in zip(*(at[ends - begins >= _LEAST_RUN].tolist() for at in (begins, ends)), strict=True):
            found[begin + period : end + period] = True
        if np.count_nonzero(found) + _LEAST_RUN > len(found):
            break
    return found


def unpredicted(pc: U64, sp: U64, slots: U64) -> U64:
    """Those of the words that a walk has read, ascending by address, that do not follow from frames inside them."""
    alone = ~repeated(pc, sp)
    caller_alone = np.append(alone[1:], True)
    of = np.maximum(np.searchsorted(sp, slots, "right") - 1, 0)
    found: U64 = slots[alone[of] | caller_alone[of]]
    return found


def unseen(words: U64, high: int, spots: Sequence[Piece]) -> int:
    """The highest of some words from address `high` on that is in none of the spots; 0 if all are."""
    words = words[np.searchsorted(words, np.uint64(high)) :]
    seen = np.zeros(len(words), np.bool_)
    for spot in spots:
        first, last = np.searchsorted(words, np.array([spot.avma, spot.avma + len(spot.data)], np.uint64)).tolist()
        seen[first:last] = True
    left = words[~seen]
    return int(left[-1]) if len(left) else 0


def highest_difference(slots: U64, values: U64, avma: int, words: npt.NDArray[np.unsignedinteger]) -> int:
    """The highest of the slots whose value is another one in memory, -1 if none is. words: of memory from avma on."""
    word = words.itemsize
    first, last = np.searchsorted(slots, np.array([avma, avma + max(words.nbytes - word + 1, 0)], np.uint64))
    place = ((slots[first:last] - np.uint64(avma)) // np.uint64(word)).view(np.int64)
    differ = np.flatnonzero(words[place] != values[first:last])
    return int(slots[first:last][differ[-1]]) if len(differ) else -1
