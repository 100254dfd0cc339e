"""Search for suspended greenlets on a C stack in CPython 3.11, by their CFrames.

The CFrames of a greenlet lead to the thread's outermost CFrame, the root. A CFrame names the innermost frame of its
evaluator call.
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

_U64 = npt.NDArray[np.uint64]
_STEPS_A_SCAN = 8
_AROUND = 24
"""Number of stack words on each side of a CFrame that are compared; most of them belong to its evaluator's C frame."""


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
        """Return the suspended evaluator calls on the stack outside the thread's chain; the search needs no slots."""
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
        """Map each CFrame to the frame that it names and the frames of its evaluator call.

        Args:
            own: The running evaluator's CFrame.
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
        """Return the frames from `top` to the outermost one of its evaluator call, and the frame after that."""
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
    """Return True if the words around CFrame `one` resemble those around the evaluator's own CFrame more than `other`
    does.

    All calls of the evaluator lay out their C frame alike; many words are equal. Arguments are indexes into the stack.
    """

    def alike(at: int) -> int:
        around = range(max(-_AROUND, -own, -at), min(_AROUND, len(stack) - max(own, at)))
        return sum(1 for offset in around if stack[own + offset] and stack[own + offset] == stack[at + offset])

    return alike(one) > alike(other)


def _region(stack: memoryview, first: int) -> _U64:
    """Return the part of the stack from index `first` on that is searched for greenlets."""
    return np.frombuffer(stack[first : first + MAX_REGION], np.uint64)


def _places(region: _U64, word: int) -> list[int]:
    """Return the indexes of a word in a region of the stack, at most MOST_WAITING."""
    found: list[int] = (region == np.uint64(word)).nonzero()[0][:MAX_WAITING].tolist()
    return found
