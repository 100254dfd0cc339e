"""A complete walk of a thread (the known chain), and the checks before a later walk reuses its frames.

find_join() finds where the path of a later walk meets the known chain, mask_needed_frames() which registers a chain
reads. A sample may only reuse frames if certain words of the chain were read with it: see find_unpredicted(),
find_highest_unread() and find_highest_difference().

Most frames of a deep recursion repeat the frames inside them: same return addresses, same sizes. Repeated frames
outside the sample's copy count as unchanged if parts of them are seen. Where the chain does not repeat, above all at
the callers of the recursion, no other word shows that it is the same chain. Each such word must be read with the sample
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.sample_batch import Piece
from pyprof.model.unwind_result import SharedFrames
from pyprof.unwind.native_unwinder import UNKNOWN, FrameRun
from pyprof.unwind.reference_unwinder import CachedFrames, LaneWalk
from pyprof.unwind.rule_cache import RuleTable

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_AGREE = 8
"""Minimum number of frames of a thread's earlier walk that must be found equal in the sample's own stack copy before
the walk is reused.
"""
_MAX_PERIOD = 8
_MIN_RUN = 64
"""Minimum number of consecutive repeated frames of a recursion. Shorter runs may be equal by chance."""


@dataclass(slots=True, eq=False)
class DeepStackReuse:
    """A complete walk of a thread's deep stack, stored so that a later walk of the thread can take over its outer
    frames.

    Attributes:
        frames: The frames of the walk.
        fp: Frame pointer of each frame.
        needs_fp: True for frames from which on the walk reads the frame pointer.
        slots: Addresses of the words that the walk reads, ascending.
        values: The values of these words.
        unpredicted: Those slots whose values do not repeat the values of inner frames.
        top: Highest CFA inside the memory, as in LaneWalk.
        number: Number of the OuterStack that provided the memory, 0 if it was a stack copy.
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
    """The place at which a walk meets an earlier walk of the thread: frame `own` of this walk is frame `at` of the
    earlier one.
    """

    known: DeepStackReuse
    own: int
    at: int


_Columns = tuple[U64, U64, U64, Mask, npt.NDArray[np.uint8], I64]
"""Columns of frames: arrays (pc, sp, fp, exact, trust, rule id). The rule id is -1 for frames that the native walker's
rules have not found.
"""


class FramePath:
    """The frames of a stack that have been found so far, while the unwinding of the stack is still in progress.

    Attributes:
        last: Rule id of the outermost frame, once it is found.
        top: CFA of the outermost frame, once it is found.
        join: Where the walk joins the thread's earlier walk, or None.
    """

    def __init__(self, walk: LaneWalk, fp: int) -> None:
        """Begin the path with the frames of a walk that kept its registers.

        Args:
            walk: The walk.
            fp: Column of the frame pointer.
        """
        self._parts: list[_Columns] = []
        self._count = 0
        self.last, self.top = -1, 0
        self.join_cached: Join | None = None
        self.add_walk(walk, fp)

    def __len__(self) -> int:
        return self._count

    def add_walk(self, walk: LaneWalk, fp: int) -> None:
        frames = CachedFrames.from_frames(walk.frames)
        fps = [registers.values[fp] for registers in walk.registers or ()]
        known = np.array([UNKNOWN if value is None else value for value in fps], np.uint64)
        self._add(frames.pc, frames.sp, known, frames.exact, frames.trust, np.full(len(known), -1, np.int64))

    def add_run(self, run: FrameRun, table: RuleTable) -> None:
        """Append consecutive frames that plain rules (CFA, return address, frame pointer) have unwound."""
        self._add(run.pc, run.sp, run.fp, np.zeros(len(run), np.bool_), table.trust[run.rule], run.rule)
        self.last, self.top = run.last, run.top

    def _add(self, *columns: *_Columns) -> None:
        if len(columns[0]):
            self._parts.append(columns)
            self._count += len(columns[0])

    def columns_since(self, first: int) -> _Columns:
        """Return the columns of the path's frames from one index on."""
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
        """Return (pc, sp, fp, exact) of a frame of the path, counted from its outer end: `back` is 1 for the last
        frame.
        """
        pc, sp, fp, exact, _, _ = self.columns_since(self._count - back)
        return int(pc[0]), int(sp[0]), int(fp[0]), bool(exact[0])

    def first_frames(self, frames: int) -> CachedFrames:
        """Return the innermost frames of the path, `frames` of them, as columns."""
        pc, sp, _, exact, trust, _ = self.columns_since(0)
        return CachedFrames(pc[:frames], exact[:frames], trust[:frames], sp[:frames])


def mask_needed_frames(uses: Mask, saves: Mask, after: bool) -> Mask:
    """Return a mask of frames that is True where unwinding, begun at that frame, reads a register before it restores
    that register.

    Args:
        uses: For each frame, True if its rule reads the register, of shape (n,).
        saves: For each frame, True if its rule restores the register, of shape (n,).
        after: The frames outside these read the register.
    """
    n = len(uses)
    frame = np.arange(n)
    use = np.append(np.where(uses, frame, n + 1), n if after else n + 1)
    save = np.append(np.where(saves & ~uses, frame, n + 1), n + 1 if after else n)
    found: Mask = (np.minimum.accumulate(use[::-1])[::-1] < np.minimum.accumulate(save[::-1])[::-1])[:n]
    return found


def find_join(earlier: DeepStackReuse, low: int, high: int, path: FramePath, first: int) -> Join | None:
    """Return where the frames of a walk in progress meet an earlier walk of the thread, or None.

    Args:
        earlier: The earlier walk.
        low: Lowest address from which on memory is unchanged.
        high: End of the sample's stack copy.
        path: The frames of the walk in progress.
        first: Index of the first frame to check.
    """
    frames = earlier.frames
    if first >= len(path):
        return None
    pc, sp, fp, exact, _, _ = path.columns_since(first)
    at = np.minimum(np.searchsorted(frames.sp, sp), len(frames) - 1)
    same = (frames.sp[at] == sp) & (frames.pc[at] == pc) & (sp >= low) & (at > 0) & ~frames.exact[at]
    same &= ~exact & ((earlier.fp[at] == fp) | ~earlier.needs_fp[at])
    same &= frames.sp[np.minimum(at + _AGREE, len(frames) - 1)] <= high
    found = int(np.argmax(same))
    return Join(earlier, first + found, int(at[found])) if same[found] else None


def slice_frames(frames: SharedFrames, first: int, last: int) -> CachedFrames:
    """Return the frames of an earlier walk between two indexes."""
    some = slice(first, last)
    return CachedFrames(frames.pc[some], frames.exact[some], frames.trust[some], frames.sp[some])


def mask_repeated(pc: U64, sp: U64) -> Mask:
    """Return a mask of the frames of a stack, innermost first, that is True for frames that repeat the frames inside
    them, as in a recursion.
    """
    size = np.diff(sp, append=sp[-1:])
    found = np.zeros(len(pc), np.bool_)
    for period in range(1, min(_MAX_PERIOD, len(pc) // 2) + 1):
        same = (pc[period:] == pc[:-period]) & (size[period:] == size[:-period])
        ends = np.append(np.flatnonzero(~same), len(same))
        begins = np.append(0, ends[:-1] + 1)
        for begin, end in zip(*(at[ends - begins >= _MIN_RUN].tolist() for at in (begins, ends)), strict=True):
            found[begin + period : end + period] = True
        if np.count_nonzero(found) + _MIN_RUN > len(found):
            break
    return found


def find_unpredicted(pc: U64, sp: U64, slots: U64) -> U64:
    """Return the stack addresses of those words of an unwound stack that do not repeat the words of the frames inside
    them. The others follow from the repetition of a recursion.

    Args:
        pc: Pc of each frame, innermost first.
        sp: Stack pointer of each frame.
        slots: Addresses of the words that the walk reads, ascending.
    """
    alone = ~mask_repeated(pc, sp)
    caller_alone = np.append(alone[1:], True)
    of = np.maximum(np.searchsorted(sp, slots, "right") - 1, 0)
    found: U64 = slots[alone[of] | caller_alone[of]]
    return found


def find_highest_unread(words: U64, high: int, spots: Sequence[Piece]) -> int:
    """Return the highest of some stack addresses whose word no piece of the sample's memory contains, 0 if there is
    none.

    Args:
        words: Addresses of the words, ascending.
        high: Words below this address are ignored.
        spots: Pieces of memory that were read with the sample.
    """
    words = words[np.searchsorted(words, np.uint64(high)) :]
    seen = np.zeros(len(words), np.bool_)
    for spot in spots:
        first, last = np.searchsorted(words, np.array([spot.avma, spot.avma + len(spot.data)], np.uint64)).tolist()
        seen[first:last] = True
    left = words[~seen]
    return int(left[-1]) if len(left) else 0


def find_highest_difference(slots: U64, values: U64, avma: int, words: npt.NDArray[np.unsignedinteger]) -> int:
    """Return the highest address whose value in memory differs from the expected one, or -1.

    Args:
        slots: Addresses of words, ascending.
        values: Their expected values.
        avma: Address of the first word of the memory.
        words: The memory.
    """
    word = words.itemsize
    first, last = np.searchsorted(slots, np.array([avma, avma + max(words.nbytes - word + 1, 0)], np.uint64))
    place = ((slots[first:last] - np.uint64(avma)) // np.uint64(word)).view(np.int64)
    differ = np.flatnonzero(words[place] != values[first:last])
    return int(slots[first:last][differ[-1]]) if len(differ) else -1
