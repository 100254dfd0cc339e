"""Suspended greenlets of CPython 3.11, by the CFrames on a C stack or in rows of the BPF program.

CPython's evaluator puts a CFrame on the C stack at each call. It names the innermost Python frame of that call and the
next outer CFrame. The CFrames of a greenlet lead to the thread's outermost CFrame, the root.

The BPF program copies the frames of all stack words that may be CFrames, besides the thread's own CFrames. This module
decides which of these evaluator calls are suspended. It searches the copy of the stack as it does for a thread that
ptrace has stopped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.cpython.greenlets import (
    MAX_REGION,
    MAX_RUN,
    MAX_WAITING,
    FrameWords,
    GreenletFrames,
    LocatedFrame,
    Search,
    Slots,
    StoppedMemory,
    SwitchedThread,
)
from pyprof.interpreters.cpython.layout import Layout
from pyprof.lazy_dataclasses import replace
from pyprof.model.interpreter_reader_protocols import FrameRows

_U64 = npt.NDArray[np.uint64]
_STEPS_A_SCAN = 8
_AROUND = 24
"""Number of stack words on each side of a CFrame that is_more_alike() compares. Most of them belong to the evaluator's
C frame.
"""


class CFrameSearch:
    """A search for suspended greenlets (GreenletSearch) in CPython 3.11."""

    def __init__(self, layout: Layout) -> None:
        thread = layout.thread
        self._frames = FrameWords(layout)
        self._current, self._outer, self._root = thread.cframe_current, thread.cframe_previous, thread.root_cframe

    def has_nothing(self, thread: SwitchedThread) -> bool:
        """Return True if no stack word outside the thread's own CFrames points to the root CFrame, so that no greenlet
        is suspended there.
        """
        own = next((cframe for cframe, frame in reversed(thread.stands) if frame), 0)
        first = own - thread.base + self._outer + 8 >> 3 if own else 0
        if not 0 <= first < len(thread.stack):
            return True
        return not _places(_region(thread.stack, first), thread.address + self._root)

    def search(self, thread: SwitchedThread, slots: Slots, reader: StoppedMemory) -> GreenletFrames:
        """Return the frames of suspended evaluator calls on the stack, to which the thread state does not lead. The
        argument `slots` is not used.
        """
        search = Search(self._frames, thread, reader)
        own = max((cframe for cframe, frame in thread.stands if frame), default=0)
        first = (own - thread.base + self._outer >> 3) + 1 if own else 0
        if not 0 <= first < len(thread.stack):
            return search.found
        named = [frame for _, frame in thread.stands if frame]
        for cframe, (current, frames) in sorted(self._activations(search, own, first).items()):
            if frames:
                # during a switch the thread has the CFrame with which a greenlet began: a copy of its parent's
                search.found.replaces |= not search.found.frames and named == [current]
                search.found.frames += frames
                search.found.stands.append((cframe, current))
                search.found.markers.add(cframe)
        return search.found

    def _activations(self, search: Search, own: int, first: int) -> dict[int, tuple[int, list[LocatedFrame]]]:
        """Return the suspended evaluator calls on a stack as a dict: by CFrame, (the Python frame that it names, all
        frames of its evaluator call).

        Args:
            search: The search, whose budget of steps is used up.
            own: The running evaluator's CFrame.
            first: Index of the first stack word to search.
        """
        stack, base = search.thread.stack, search.thread.base
        region = _region(stack, first)
        outer_at = (self._outer >> 3) - first
        known: dict[int, tuple[int, list[LocatedFrame]]] = {}
        copies: set[int] = set()
        twins: dict[tuple[int, int], int] = {}
        places = [(index - outer_at, 0) for index in _places(region, search.thread.address + self._root)]
        while places and len(known) < MAX_WAITING and search.spend_steps(_STEPS_A_SCAN):
            index, outer = places.pop()
            cframe = base + 8 * index
            if index < first or cframe in known or (outer and outer not in known):
                continue
            current = stack[index + (self._current >> 3)]
            frames, leads_to = self._entered(search, current)
            if outer and not frames:
                continue
            if outer and leads_to != known[outer][0]:
                if leads_to or any(avma == current for _, _, avma in known[outer][1]):
                    continue  # the evaluator call has ended: its CFrame names the frame that it returned to
                copies.add(outer)  # a greenlet began with this copy; it stands for no evaluator call
            twin = twins.get((current, outer)) if frames else None
            if twin is not None:  # one of the two has ended at another stack depth, and the frame is used again
                if not is_more_alike(stack, own - base >> 3, index, twin - base >> 3):
                    continue
                del known[twin]
            twins[current, outer] = cframe
            known[cframe] = current, frames
            places += [(inner - outer_at, cframe) for inner in _places(region, cframe)]
        return {cframe: known[cframe] for cframe in known.keys() - copies}

    def _entered(self, search: Search, top: int) -> tuple[list[LocatedFrame], int]:
        """Return (the Python frames of one evaluator call from the frame `top` outwards, the caller of the outermost
        one). The result is ([], 0) if `top` is not the innermost frame of a suspended call.
        """
        frames: list[LocatedFrame] = []
        frame = top if top and search.calls(top) else 0
        while frame and len(frames) < MAX_RUN and search.spend_steps():
            words, at = search.read(frame)
            if words is None:
                break
            frames.append((words, at, frame))
            frame = words[at + self._frames.previous]
            if self._frames.flags(words, at):
                return frames, frame
        return [], 0


def is_more_alike(stack: memoryview, own: int, one: int, other: int) -> bool:
    """Return True if the stack words around the CFrame `one` resemble those around `own`, a CFrame of the running
    evaluator, more than those around `other` do.

    All calls of the evaluator lay out their C frame alike, so many words are equal. CFrames are given as indexes into
    the stack.
    """

    def alike(at: int) -> int:
        around = range(max(-_AROUND, -own, -at), min(_AROUND, len(stack) - max(own, at)))
        return sum(1 for offset in around if stack[own + offset] and stack[own + offset] == stack[at + offset])

    return alike(one) > alike(other)


def _region(stack: memoryview, first: int) -> _U64:
    """Return the part of the stack from index `first` on that is searched for greenlets."""
    return np.frombuffer(stack[first : first + MAX_REGION], np.uint64)


def _places(region: _U64, word: int) -> list[int]:
    """Return the indexes at which a word occurs in a region of the stack, at most MAX_WAITING of them."""
    found: list[int] = (region == np.uint64(word)).nonzero()[0][:MAX_WAITING].tolist()
    return found


_CALLS = np.uint64(1 << 8)
_OUTER_SHIFT = np.uint64(8)
_NO_HEIGHT = 0xFFFF_FFFF
"""Value of the field for the evaluation stack's depth, in a Python frame that is calling native code."""


class WaitingRows:
    """A filter of the rows that the BPF program has copied of possibly suspended evaluator calls on a stack. It keeps
    the rows of calls that are suspended.
    """

    def __init__(self, layout: Layout) -> None:
        self._words = FrameWords(layout)
        self._search = CFrameSearch(layout)

    def filter_rows(self, rows: FrameRows) -> FrameRows:
        """Return the copied rows of a batch, in which only really suspended evaluator calls remain besides the threads'
        own frames. The suspended calls are ordered innermost first and have their CFrames.
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
        """Search the copied stack of one sample for suspended evaluator calls.

        Args:
            places: Indexes of the rows of frames that may be suspended.
            marks: The thread's own CFrames: pairs of (CFrame, Python frame that it names).

        Returns:
            (the suspended evaluator calls, the indexes of the rows of their frames).
        """
        copy = rows.copies[lane]
        memory = _RowMemory(self._words, rows.frames[places.start : places.stop], copy.links)
        own = [(mark, frame) for mark, frame in marks]
        found = self._search.search(SwitchedThread(copy.state, [], own, 0, copy.words, copy.base), {}, memory)
        return found, [places[at // memory.width] for _, at, _ in found.frames]


class _RowMemory:
    """The memory of a stopped thread, as a search for greenlets reads it (StoppedMemory), made from the rows that the
    BPF program has copied. It converts the rows to the layout of frames in the target.

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
