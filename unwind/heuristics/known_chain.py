"""A whole chain of frames that is known of a thread, and the path of a later walk of it until it joins that one.

In: the frames of walks. Out: where a path meets the known chain (Join), which registers a chain needs (needed), and
what a sample must show of it so that it may have its frames (unpredicted, unseen, highest_difference).

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
from pyprof.model.walk import SharedFrames
from pyprof.records import dataclass
from pyprof.unwind.heuristics.cached_frames import CachedFrames
from pyprof.unwind.scalar import LaneWalk
from pyprof.unwind.single_lane import UNKNOWN, FrameRun
from pyprof.unwind.table import RuleTable

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_AGREE = 8
"""So many frames of the known chain must lie in the lane's own copy, and be equal."""
_MOST_PERIOD = 8
_LEAST_RUN = 64
"""So many frames in a row must be equal to those one period inside them. Fewer are equal by chance."""


@dataclass(slots=True, eq=False)
class KnownChain:
    """A whole chain. fp: of each frame; needs_fp: the walk from there on reads it. slots, values: the words that the
    walk has read, ascending by address. unpredicted: the slots that no repetition foretells. top: as in LaneWalk.
    number: of its OuterStack, 0 if none.
    """

    frames: SharedFrames
    fp: U64
    needs_fp: Mask
    slots: U64
    values: U64
    unpredicted: U64
    top: int
    number: int


@dataclass(slots=True)
class Join:
    """The walk's frame `own` is the frame `at` of the known chain."""

    known: KnownChain
    own: int
    at: int


_Columns = tuple[U64, U64, U64, Mask, npt.NDArray[np.uint8], I64]
"""pc, sp, fp, exact, trust, and the id of the rule by which the frame was found, -1 where that was not a plain one."""


class FramePath:
    """Frames under way. last: the rule of the outermost frame, top: its cfa, once it is found."""

    def __init__(self, walk: LaneWalk, fp: int) -> None:
        """The beginning, from a walk that kept its registers. fp: its column."""
        self._parts: list[_Columns] = []
        self._count = 0
        self.last, self.top = -1, 0
        self.join: Join | None = None
        self.add_walk(walk, fp)

    def __len__(self) -> int:
        return self._count

    def add_walk(self, walk: LaneWalk, fp: int) -> None:
        frames = CachedFrames.of(walk.frames)
        fps = [registers.values[fp] for registers in walk.registers or ()]
        known = np.array([UNKNOWN if value is None else value for value in fps], np.uint64)
        self._add(frames.pc, frames.sp, known, frames.exact, frames.trust, np.full(len(known), -1, np.int64))

    def add(self, run: FrameRun, table: RuleTable) -> None:
        """What follows the last frame."""
        self._add(run.pc, run.sp, run.fp, np.zeros(len(run), np.bool_), table.trust[run.rule], run.rule)
        self.last, self.top = run.last, run.top

    def _add(self, *columns: *_Columns) -> None:
        if len(columns[0]):
            self._parts.append(columns)
            self._count += len(columns[0])

    def since(self, first: int) -> _Columns:
        """The frames from one on."""
        count, parts = self._count - first, list[_Columns]()
        for part in reversed(self._parts):
            if count <= 0:
                break
            parts.append(part)
            count -= len(part[0])
        pc, sp, fp, exact, trust, rule = (
            np.concatenate([part[column] for part in reversed(parts)])[max(-count, 0) :] for column in range(6)
        )
        return pc, sp, fp, exact, trust, rule

    def state(self, back: int = 1) -> tuple[int, int, int, bool]:
        """pc, sp, fp, exact of the last frame, or of one further inside."""
        pc, sp, fp, exact, _, _ = self.since(self._count - back)
        return int(pc[0]), int(sp[0]), int(fp[0]), bool(exact[0])

    def cut(self, frames: int) -> CachedFrames:
        """The first frames."""
        pc, sp, _, exact, trust, _ = self.since(0)
        return CachedFrames(pc[:frames], exact[:frames], trust[:frames], sp[:frames])


def needed(uses: Mask, saves: Mask, after: bool) -> Mask:
    """Of each frame: does the walk from there on read the register before it restores it?"""
    n = len(uses)
    frame = np.arange(n)
    use = np.append(np.where(uses, frame, n + 1), n if after else n + 1)
    save = np.append(np.where(saves & ~uses, frame, n + 1), n + 1 if after else n)
    found: Mask = (np.minimum.accumulate(use[::-1])[::-1] < np.minimum.accumulate(save[::-1])[::-1])[:n]
    return found


def join_of(known: KnownChain, low: int, high: int, path: FramePath, first: int) -> Join | None:
    """Where the frames of a path from `first` on meet the known chain."""
    frames = known.frames
    if first >= len(path):
        return None
    pc, sp, fp, exact, _, _ = path.since(first)
    at = np.minimum(np.searchsorted(frames.sp, sp), len(frames) - 1)
    same = (frames.sp[at] == sp) & (frames.pc[at] == pc) & (sp >= low) & (at > 0) & ~frames.exact[at]
    same &= ~exact & ((known.fp[at] == fp) | ~known.needs_fp[at])
    same &= frames.sp[np.minimum(at + _AGREE, len(frames) - 1)] <= high
    found = int(np.argmax(same))
    return Join(known, first + found, int(at[found])) if same[found] else None


def part_of(frames: SharedFrames, first: int, last: int) -> CachedFrames:
    """The frames of a known chain between two places."""
    some = slice(first, last)
    return CachedFrames(frames.pc[some], frames.exact[some], frames.trust[some], frames.sp[some])


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
