"""Search for suspended greenlets in rows that the BPF program has copied, CPython 3.11.

The BPF program copies the frames of everything that may be a CFrame outside the thread's own ones. This module decides
which of them wait, with the search that stops use, over the copy of the stack.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.cpython.greenlet_cframes import CFrameSearch
from pyprof.interpreters.cpython.greenlets import FrameWords, GreenletFrames, SwitchedThread
from pyprof.interpreters.cpython.layout import Layout
from pyprof.model.interpreter_state import FrameRows
from pyprof.records import replace

_U64 = npt.NDArray[np.uint64]
_CALLS = np.uint64(1 << 8)
_OUTER_SHIFT = np.uint64(8)
_NO_HEIGHT = 0xFFFF_FFFF
"""Value of the stack depth field of a frame that calls native code."""


class WaitingRows:
    """A filter of the frame rows of evaluator calls that wait on the stacks of one process."""

    def __init__(self, layout: Layout) -> None:
        self._words = FrameWords(layout)
        self._search = CFrameSearch(layout)

    def filter_rows(self, rows: FrameRows) -> FrameRows:
        """Return the frame rows of a batch in which only evaluator calls that really wait remain, innermost first, with
        their CFrames.
        """
        if not rows.waiting.any():
            return rows
        start, stand_start = rows.start.tolist(), rows.stand_start.tolist()
        chosen: list[int] = []
        stands: list[list[int]] = []
        starts, stand_starts, waiting = [0], [0], []
        for lane, count in enumerate(rows.waiting.tolist()):
            end = start[lane + 1]
            own = range(start[lane], end - count)
            marks = rows.stands[stand_start[lane] : stand_start[lane + 1]].tolist()
            frames: list[int] = []
            if count:
                found, frames = self._find(rows, lane, range(end - count, end), marks)
                own, marks = (own, marks) if not found.replaces else (range(0), [])
                marks += [[*stand] for stand in found.stands]
            chosen += [*own, *frames]
            stands += marks
            starts.append(len(chosen))
            stand_starts.append(len(stands))
            waiting.append(len(frames))
        at = np.array(chosen, np.int64)
        return replace(
            rows,
            start=np.array(starts, np.int64),
            waiting=np.array(waiting, np.int64),
            frames=rows.frames[at],
            flag=rows.flag[at],
            tlbc=np.zeros(len(at), np.uint32),
            stand_start=np.array(stand_starts, np.int64),
            stands=np.array(stands, np.uint64).reshape(-1, 2),
            copies={},
        )

    def _find(
        self, rows: FrameRows, lane: int, places: range, marks: list[list[int]]
    ) -> tuple[GreenletFrames, list[int]]:
        """Search the copied stack of one sample for evaluator calls that wait.

        Args:
            places: Rows of frames that may wait.
            marks: The thread's own CFrames.

        Returns:
            What waits, and the rows of its frames.
        """
        copy = rows.copies[lane]
        memory = _RowMemory(self._words, rows.frames[places.start : places.stop], copy.links)
        own = [(mark, frame) for mark, frame in marks]
        found = self._search.search(SwitchedThread(copy.state, [], own, 0, copy.words, copy.base), {}, memory)
        return found, [places[at // memory.width] for _, at, _ in found.frames]


class _RowMemory:
    """A greenlets.StoppedMemory over copied rows, which it converts back to the target's frame layout.

    Attributes:
        width: Number of words of each frame.
    """

    def __init__(self, words: FrameWords, frames: _U64, links: _U64) -> None:
        """Create the memory of a stopped thread from columns of FrameRows (frames) and CopiedStack (links)."""
        self.width = (words.size >> 3) + 1
        table = np.zeros((len(frames), self.width), np.uint64)
        table[:, words.code], table[:, words.instr] = frames[:, 1], frames[:, 2]
        table[:, words.previous] = links >> _OUTER_SHIFT & ~np.uint64(7)
        table[:, words.instr + 1] = (links & _CALLS != 0) * np.uint64(_NO_HEIGHT)
        table[:, words.flag] |= (links & np.uint64(0xFF)) << np.uint64(words.flag_shift)
        self._words = table.reshape(-1).data
        self._places = {avma: self.width * n for n, avma in enumerate(frames[:, 0].tolist())}

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        at = self._places.get(avma)
        return (self._words, at) if at is not None else (None, 0)

    def fetch(self, avmas: list[int], size: int) -> None:
        """Read no further memory: the rows that the BPF program copied hold all frames that can be read."""
