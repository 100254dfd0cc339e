"""Activations of the evaluator that wait on a thread's C stack and are not in its chain: those of other greenlets.

A greenlet begins on the C stack of the one that started it, and the thread state forgets that one's frames while it
runs. What they have left on the stack is found again: entry frames (3.12 and later) by the instruction that all of
them name, CFrames (3.11) by the root that the outermost ones lead to. Each entry frame names the innermost frame of
the next activation outside it. The innermost frame of all is named by its CFrame (3.11, 3.12), else by a register that
some function saved between the two: of all words there those count whose frames lead to that very entry frame. A
library that shows the frames of suspended stacks (greenlet) takes the entry frames out of their chain and keeps the
links in the frames' objects; these objects tell as well that a frame is alive.

Runs while the thread stands still. What was found last time is copied with everything else, so that it costs no read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pyprof.interpreters.cpython.layout import NONE, Layout

Slots = dict[int, tuple[int, int]]
"""By entry frame: where the address of its activation's innermost frame stood, and that address."""
Placed = tuple[memoryview, int, int]
"""(words, index of its first word, avma) of a frame."""

MOST_REGION = 1 << 15
"""Words of the stack that are searched."""
MOST_WAITING = 256
"""Activations."""
_MOST_FRAMES = 2048
_MOST_CANDIDATES = 256
_MOST_STEPS = 3000
"""Of one search, frames and places looked at together: hostile memory leads in circles, and the thread stands still."""
_WORDS_A_STEP, _STEPS_A_SCAN = 8, 8
_LAST_OWNER = 7
_AROUND = 24
"""Words on each side of a CFrame, most of which belong to its evaluator's frame."""
_NEAR = 0x400
"""Bytes within which the evaluator's CFrame and its entry frame lie."""


class Reader(Protocol):
    """Memory of the thread that stands still."""

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        """Words and the index of the first one wanted; None if they cannot be read."""
        ...

    def fetch(self, avmas: list[int], size: int) -> None:
        """Read many at once that will be asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Waiter:
    """The thread as its own chain has it. address: of its state. frames: innermost first, with the entry frames (3.12
    and later). stands: its CFrames and the frames that they name. stop: the frame at which all chains end.
    """

    address: int
    frames: list[Placed]
    stands: list[tuple[int, int]]
    stop: int


@dataclass(slots=True)
class Found:
    """frames, stands: as the thread's chain would have them. objects: avma of what else was read. markers:
    of those that wait. replaces: they begin with the frames of the chain itself, which lacked its entry frames.
    """

    frames: list[Placed] = field(default_factory=list)
    stands: list[tuple[int, int]] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    markers: set[int] = field(default_factory=set)
    replaces: bool = False


def waiting_size(layout: Layout) -> int:
    """Bytes that are read of a frame or of its object."""
    return max(layout.frame.size, layout.frame.object_link + 8) + 7 & ~7


class WaitingFrames:
    """Of one layout, 3.11 or later."""

    def __init__(self, layout: Layout, entry_owner: int) -> None:
        frame, thread = layout.frame, layout.thread
        self._entry_owner = entry_owner
        self._previous, self._code, self._instr = frame.previous >> 3, frame.code >> 3, frame.instr >> 3
        flag = frame.is_entry if frame.is_entry != NONE else frame.owner
        self._flag, self._shift = flag >> 3, 8 * (flag & 7)
        self._object = frame.object >> 3
        self._object_frame, self._object_link = frame.object_frame >> 3, frame.object_link >> 3
        self._shows = frame.object_link != NONE
        self._size = waiting_size(layout)
        self._current, self._outer = thread.cframe_current, thread.cframe_previous
        self._is_entry, self._root = frame.is_entry, thread.root_cframe
        self._has_height = layout.minor < 14
        self._mark = 0, 0
        self._delta = self._heap = self._left = 0

    def search(self, thread: Waiter, stack: memoryview, base: int, slots: Slots, reader: Reader) -> Found:
        """stack: the thread's words, which stood at base. slots: of the last sample."""
        self._left = _MOST_STEPS
        if self._is_entry != NONE:
            return self._cframes(thread, stack, base, reader)
        return self._entries(thread, stack, base, slots, reader)

    def nothing(self, thread: Waiter, stack: memoryview, base: int) -> bool:
        """Is nothing there to be found? That is so in all threads that have no greenlets: little is done for them."""
        if self._is_entry != NONE:
            first = next((cframe - base + self._outer + 8 for cframe, at in reversed(thread.stands) if at), 0)
            mark = (thread.address + self._root).to_bytes(8, "little")
        else:
            first = 0
            if thread.frames:
                words, at, avma = thread.frames[-1]
                if words[at + self._flag] >> self._shift & 0xFF >= self._entry_owner:
                    if words[at + self._instr] != self._mark[0]:
                        self._learn(thread, range(base, base + 8 * len(stack)))
                    first = avma - base + 8
            mark = self._mark[0].to_bytes(8, "little")
        if not 0 <= first < 8 * len(stack) or (not self._mark[0] and self._is_entry == NONE):
            return True
        first >>= 3
        return stack[first : first + MOST_REGION].tobytes().find(mark) < 0

    def _learn(self, thread: Waiter, bounds: range) -> None:
        """How this process's entry frames look, from the outermost one of a chain."""
        words, at, avma = thread.frames[-1]
        self._mark = words[at + self._instr], words[at + self._code]
        self._delta = self._to_cframe(avma, thread.stands) or self._delta
        self._heap = next((frame for _, _, frame in thread.frames if frame not in bounds), self._heap)

    def _entries(self, thread: Waiter, stack: memoryview, base: int, slots: Slots, reader: Reader) -> Found:
        bounds = range(base, base + 8 * len(stack))
        first = top = 0
        if thread.frames:
            words, at, avma = thread.frames[-1]
            if words[at + self._flag] >> self._shift & 0xFF >= self._entry_owner:
                self._learn(thread, bounds)
                first = (avma - base >> 3) + 1
            else:
                top = thread.frames[0][2]
        found = Found()
        known = dict(slots)
        slots.clear()
        if not self._mark[0] or not 0 <= first < len(stack):
            return found
        running, low = top, first
        for index in self._like(stack, first):
            entry = base + 8 * index
            frames = self._run(top, entry, bounds, found, reader) if top and self._calls(top, running, reader) else None
            if frames is None and running and not found.frames:
                continue
            if frames is None and self._delta:
                place = index + (self._delta + self._current >> 3)
                if 0 <= place < len(stack) and self._calls(stack[place], 0, reader):
                    frames = self._run(stack[place], entry, bounds, found, reader)
            elif frames is None:
                near = range(low, index)
                frames = self._guess(stack, base, near, known.get(entry, (0, 0)), found, slots, reader)
            if frames is None:
                continue  # it may have been left, and nothing is written over it yet
            found.frames += [*frames, (stack, index, entry)]
            found.markers.add(entry)
            top = stack[index + self._previous]
            top = 0 if top == thread.stop else top
            low = index
        if running and found.frames:
            found.replaces = True
            found.markers.discard(next(avma for _, _, avma in found.frames if avma in bounds))
        return found

    def _calls(self, frame: int, running: int, reader: Reader) -> bool:
        """Does a frame call a C function? One that was left, or calls Python code, has noted its stack's height."""
        if frame == running or not self._has_height:
            return True
        words, at = reader.read(frame, self._size)
        return words is not None and words[at + self._instr + 1] & 0xFFFFFFFF == 0xFFFFFFFF

    def _like(self, stack: memoryview, first: int) -> Iterator[int]:
        """Indexes of entry frames, innermost first."""
        instr, code = self._mark
        data, pattern = stack[first : first + MOST_REGION].tobytes(), instr.to_bytes(8, "little")
        at = data.find(pattern)
        count = 0
        while at >= 0 and count < MOST_WAITING and self._step():
            index = first + (at >> 3) - self._instr
            if not at & 7 and index >= first and index + self._flag < len(stack):
                owner = stack[index + self._flag] >> self._shift & 0xFF
                if stack[index + self._code] == code and self._entry_owner <= owner <= _LAST_OWNER:
                    yield index
                    count += 1
            at = data.find(pattern, (at & -8) + 8)

    def _step(self, steps: int = 1) -> bool:
        """May the search go on?"""
        self._left -= steps
        return self._left >= 0

    def _to_cframe(self, entry: int, stands: list[tuple[int, int]]) -> int:
        """From an activation's entry frame to its CFrame, 0 where there are none."""
        near = [cframe - entry for cframe, _ in stands if abs(cframe - entry) < _NEAR]
        return min(near, key=abs, default=0)

    def _run(self, top: int, entry: int, bounds: range, found: Found, reader: Reader) -> list[Placed] | None:
        """The frames of an activation from its innermost one on; None if they do not lead to its entry frame."""
        frames: list[Placed] = []
        objects: list[int] = []
        frame = top
        while frame and len(frames) < _MOST_FRAMES and self._step():
            words, at = reader.read(frame, self._size)
            if words is None or words[at + self._flag] >> self._shift & 0xFF >= self._entry_owner:
                return None
            frames.append((words, at, frame))
            outer = words[at + self._previous]
            if outer != entry:
                link = self._link(words[at + self._object], frame, objects, reader)
                outer = link if link in bounds else outer
            if outer == entry:
                found.objects += objects
                return frames
            if outer in bounds:
                return None  # the outermost one of another activation
            frame = outer
        return None

    def _link(self, made: int, frame: int, objects: list[int], reader: Reader) -> int:
        """Where a frame's object says that it leads; 0 if it is not its object."""
        if not made or not self._shows:
            return 0
        words, at = reader.read(made, self._size)
        if words is None or words[at + self._object_frame] != frame:
            return 0
        objects.append(made)
        return int(words[at + self._object_link])

    def _guess(
        self, stack: memoryview, base: int, near: range, last: tuple[int, int], found: Found, slots: Slots,
        reader: Reader,
    ) -> list[Placed] | None:  # fmt: skip
        """The run of an activation whose innermost frame is named by some word between it and the one inside it."""
        entry = base + 8 * near.stop
        bounds = range(base, base + 8 * len(stack))
        slot, frame = last
        place = slot - base >> 3
        if slot and place in near and stack[place] == frame:
            frames = self._living(frame, entry, bounds, found, reader)
            if frames is not None:
                slots[entry] = last
                return frames
        places: dict[int, int] = {}
        if not self._step(len(near) // _WORDS_A_STEP):
            return None
        for place in reversed(near):
            word = stack[place]
            if not word & 7 and abs((word >> 32) - (self._heap >> 32)) <= 1 and word not in bounds:
                places.setdefault(word, base + 8 * place)
                if len(places) >= _MOST_CANDIDATES:
                    break
        reader.fetch(list(places), self._size)
        best: list[Placed] | None = None
        for word, at in places.items():
            if not self._step():
                break
            frames = self._living(word, entry, bounds, found, reader)
            if frames is not None and (best is None or len(frames) > len(best)):
                best, slots[entry] = frames, (at, word)
        if best is None and frame:  # a register may still hold it
            best = self._living(frame, entry, bounds, found, reader)
            if best is not None:
                slots[entry] = last
        return best

    def _living(self, top: int, entry: int, bounds: range, found: Found, reader: Reader) -> list[Placed] | None:
        """The run from a frame on that has an object of its own: one that was left has none, or one that says so."""
        words, at = reader.read(top, self._size)
        if words is None or not self._link(words[at + self._object], top, [], reader):
            return None
        if not self._calls(top, 0, reader):
            return None
        return self._run(top, entry, bounds, found, reader)

    def _cframes(self, thread: Waiter, stack: memoryview, base: int, reader: Reader) -> Found:
        own = max((cframe for cframe, frame in thread.stands if frame), default=0)
        first = (own - base + self._outer >> 3) + 1 if own else 0
        found = Found()
        if not 0 <= first < len(stack):
            return found
        root = thread.address + self._root
        data = stack[first : first + MOST_REGION].tobytes()
        outer_at = (self._outer >> 3) - first
        current_at = self._current >> 3
        known: dict[int, tuple[int, list[Placed]]] = {}
        copies: set[int] = set()
        twins: dict[tuple[int, int], int] = {}
        places = [(index - outer_at, 0) for index in _places(data, root)]
        while places and len(known) < MOST_WAITING and self._step(_STEPS_A_SCAN):
            index, outer = places.pop()
            cframe = base + 8 * index
            if index < first or cframe in known or (outer and outer not in known):
                continue
            current = stack[index + current_at]
            frames, leads_to = self._entered(current, reader)
            if outer and not frames:
                continue
            if outer and leads_to != known[outer][0]:
                if leads_to or any(avma == current for _, _, avma in known[outer][1]):
                    continue  # the activation was left: it names what it returned to
                copies.add(outer)  # with which a greenlet has begun; it stands for no activation
            twin = twins.get((current, outer)) if frames else None
            if twin is not None:  # one of the two was left at another height, and the same frame is used again
                if not _more_alike(stack, own - base >> 3, index, twin - base >> 3):
                    continue
                del known[twin]
            twins[current, outer] = cframe
            known[cframe] = current, frames
            places += [(inner - outer_at, cframe) for inner in _places(data, cframe)]
        for cframe in sorted(known.keys() - copies):
            current, frames = known[cframe]
            if frames:
                found.frames += frames
                found.stands.append((cframe, current))
                found.markers.add(cframe)
        return found

    def _entered(self, top: int, reader: Reader) -> tuple[list[Placed], int]:
        """The frames from one on to the outermost of its activation, and the one that it leads to."""
        frames: list[Placed] = []
        frame = top if top and self._calls(top, 0, reader) else 0
        while frame and len(frames) < _MOST_FRAMES and self._step():
            words, at = reader.read(frame, self._size)
            if words is None:
                break
            frames.append((words, at, frame))
            frame = words[at + self._previous]
            if words[at + self._flag] >> self._shift & 0xFF:
                return frames, frame
        return [], 0


def _more_alike(stack: memoryview, own: int, one: int, other: int) -> bool:
    """Is the surrounding of one CFrame more like that of the evaluator's own than that of the other is? All activations
    lay out their C frame alike, and much of what they keep there is the same. Arguments: indexes.
    """

    def alike(at: int) -> int:
        around = range(max(-_AROUND, -own, -at), min(_AROUND, len(stack) - max(own, at)))
        return sum(1 for offset in around if stack[own + offset] and stack[own + offset] == stack[at + offset])

    return alike(one) > alike(other)


def _places(data: bytes, word: int) -> list[int]:
    """Indexes of a word."""
    pattern = word.to_bytes(8, "little")
    found: list[int] = []
    at = data.find(pattern)
    while at >= 0 and len(found) < MOST_WAITING:
        if not at & 7:
            found.append(at >> 3)
        at = data.find(pattern, (at & -8) + 8)
    return found
