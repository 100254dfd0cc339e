"""Suspended greenlets on a thread's C stack, by entry frames (CPython 3.12 and later) or by CFrames.

A greenlet begins on the C stack of the greenlet that started it. While it runs, the thread state does not lead to its
parent's frames. The search finds what the evaluator calls of the parent left on the stack: entry frames in 3.12 and
later, CFrames in 3.11 (greenlet_cframes.py). When the greenlet library shows the frames of suspended stacks, it removes
the entry frames from the chain of frames and keeps the links in the frame objects. These objects also prove that a
frame is alive.

The search runs while the thread is stopped. What the last search found is copied with everything else, so that it costs
no separate read.

All entry frames name the same instruction. Each one names the innermost frame of the next outer evaluator call. For the
innermost suspended call, a CFrame names that frame in 3.12. In later versions only a register does, which some function
saved on the stack. The search accepts those stack words whose frames lead to the call's entry frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from pyprof.interpreters.cpython.layout import NONE, Layout
from pyprof.lazy_dataclasses import dataclass, field

Slots = dict[int, tuple[int, int]]
"""Places at which the innermost frames of suspended evaluator calls were found. avma of the call's entry frame ->
(address of the stack word that held the frame's avma, that avma).
"""
LocatedFrame = tuple[memoryview, int, int]
"""Place of a Python frame in copied memory: (words, index of its first word, avma)."""

MAX_REGION = 1 << 15
"""Maximum number of stack words that are searched for suspended greenlets."""
MAX_WAITING = 256
"""Maximum number of suspended evaluator calls that are searched for on one stack."""
MAX_RUN = 2048
"""Maximum number of frames of one suspended evaluator call."""
MAX_STEPS = 3000
"""Maximum number of frames and stack words that one search for greenlets looks at. Hostile memory may lead in circles
while the thread is stopped.
"""


class StoppedMemory(Protocol):
    """The protocol by which a search for greenlets reads the memory of a stopped thread."""

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        """Return (64-bit words of the stopped thread's memory, index of the word at the wanted address), or (None, 0)
        if they cannot be read.
        """
        ...

    def fetch(self, avmas: list[int], size: int) -> None:
        """Read several frames or objects at once that the search for greenlets will need."""
        ...


@dataclass(frozen=True, slots=True)
class SwitchedThread:
    """The input of a search for suspended greenlets of a thread: the Python frames of the running greenlet, and the
    copied C stack.

    Attributes:
        address: avma of the thread state.
        frames: Frames, innermost first, with the entry frames in 3.12 and later.
        stands: Pairs (CFrame, Python frame that it names).
        stop: Frame at which all frame chains end.
        stack: Words of the stack copy.
        base: Address of the stack copy.
    """

    address: int
    frames: list[LocatedFrame]
    stands: list[tuple[int, int]]
    stop: int
    stack: memoryview
    base: int


@dataclass(slots=True)
class GreenletFrames:
    """The frames of suspended greenlets that a search of a stack found.

    Attributes:
        frames: (words, index of its first word, avma) of each frame, innermost first.
        stands: (avma, Python frame that it names) of each CFrame, innermost first.
        objects: avma of other memory that was read.
        markers: C stack markers of the suspended evaluator calls.
        replaces: True if `frames` begins with the frames of the chain itself, because that chain lacked its entry
            frames or has a CFrame that stands for no evaluator call.
    """

    frames: list[LocatedFrame] = field(default_factory=list)
    stands: list[tuple[int, int]] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    markers: set[int] = field(default_factory=set)
    replaces: bool = False


class GreenletSearch(Protocol):
    """A search for suspended greenlets on the stacks of one process."""

    def has_nothing(self, thread: SwitchedThread) -> bool:
        """Return True if the thread's stack has no suspended greenlet. This check is cheap: it is true for all threads
        without greenlets.
        """
        ...

    def search(self, thread: SwitchedThread, slots: Slots, reader: StoppedMemory) -> GreenletFrames:
        """Search the stack of a stopped thread for suspended greenlets.

        Args:
            slots: Stack words in which the search at the thread's last sample found frames (Slots). The search replaces
                them by those that it finds.
        """
        ...


def count_waiting_bytes(layout: Layout) -> int:
    """Return the number of bytes that the search for greenlets reads of a frame or of its frame object."""
    return max(layout.frame.size, layout.frame.object_link + 8) + 7 & ~7


class FrameWords:
    """Indexes of the words of a Python frame that the search for greenlets reads.

    Attributes:
        size: Number of bytes to read of a frame.
    """

    def __init__(self, layout: Layout) -> None:
        frame = layout.frame
        self.size = count_waiting_bytes(layout)
        self.previous, self.code, self.instr = frame.previous >> 3, frame.code >> 3, frame.instr >> 3
        flag = frame.is_entry if frame.is_entry != NONE else frame.owner
        self.flag, self.flag_shift = flag >> 3, 8 * (flag & 7)
        self.object, self.object_frame = frame.object >> 3, frame.object_frame >> 3
        self.object_link = frame.object_link >> 3 if frame.object_link != NONE else 0
        self.has_height = layout.minor < 14

    def flags(self, words: memoryview, at: int) -> int:
        """Return the owner of a Python frame (3.12 and later), or 1 if the frame is the outermost of its evaluator call
        (3.11).
        """
        return int(words[at + self.flag] >> self.flag_shift & 0xFF)


class Search:
    """One search for suspended greenlets on the stack of one thread, with its limit on steps and its result."""

    def __init__(self, frames: FrameWords, thread: SwitchedThread, reader: StoppedMemory) -> None:
        self.thread = thread
        self.bounds = range(thread.base, thread.base + 8 * len(thread.stack))
        self.found = GreenletFrames()
        self.reader = reader
        self._frames = frames
        self._left = MAX_STEPS

    def spend_steps(self, steps: int = 1) -> bool:
        """Count steps against the limit of the search, and return False when the limit is exceeded."""
        self._left -= steps
        return self._left >= 0

    def read(self, frame: int) -> tuple[memoryview | None, int]:
        """Return the words of a Python frame or of a frame object and the index of its first one; (None, 0) if they
        cannot be read.
        """
        return self.reader.read(frame, self._frames.size)

    def calls(self, frame: int) -> bool:
        """Return True if a Python frame may be calling a C function. A frame that is suspended or that calls Python
        code has stored its stack depth.
        """
        if not self._frames.has_height:
            return True
        words, at = self.read(frame)
        return words is not None and words[at + self._frames.instr + 1] & 0xFFFFFFFF == 0xFFFFFFFF

    def link(self, made: int, frame: int, objects: list[int]) -> int:
        """Return the Python frame to which a frame object links, and append the object to `objects`; 0 if the object
        does not belong to the frame.
        """
        if not made or not self._frames.object_link:
            return 0
        words, at = self.read(made)
        if words is None or words[at + self._frames.object_frame] != frame:
            return 0
        objects.append(made)
        return int(words[at + self._frames.object_link])


_MAX_CANDIDATES = 256
_WORDS_A_STEP = 8
_LAST_OWNER = 7
_NEAR = 0x400
"""Maximum distance in bytes on the C stack between the CFrame and the entry frame of one evaluator call."""
_BEHIND = 128
"""Maximum distance in words on the data stack from the beginning of a Python frame to the frame that it calls."""


class EntrySearch:
    """A search for suspended greenlets in CPython 3.12 and later. It finds them by entry frames on the stack, and
    learns what the entry frames of one process look like.

    It learns the instruction and code of entry frames, their distance to the CFrame, and the memory region of frames
    that are not on the C stack. `entry_owner` is the smallest value of the field `owner` in an entry frame.
    """

    def __init__(self, layout: Layout, entry_owner: int) -> None:
        self._frames = FrameWords(layout)
        self._entry_owner = entry_owner
        self._current = layout.thread.cframe_current
        self._mark = 0, 0
        self._delta = self._heap = 0

    def has_nothing(self, thread: SwitchedThread) -> bool:
        """Return True if the stack holds no entry frame of a suspended greenlet outside the thread's chain."""
        first = 0
        if thread.frames:
            words, at, avma = thread.frames[-1]
            if self._is_entry(words, at):
                if words[at + self._frames.instr] != self._mark[0]:
                    self._learn(thread)
                first = avma - thread.base + 8
        if not 0 <= first < 8 * len(thread.stack) or not self._mark[0]:
            return True
        first >>= 3
        return thread.stack[first : first + MAX_REGION].tobytes().find(self._mark[0].to_bytes(8, "little")) < 0

    def search(self, thread: SwitchedThread, slots: Slots, reader: StoppedMemory) -> GreenletFrames:
        """Return the frames of suspended evaluator calls on the stack, to which the thread state does not lead. Store
        in `slots` where they were found, for the next sample.
        """
        first = top = 0
        if thread.frames:
            words, at, avma = thread.frames[-1]
            if self._is_entry(words, at):
                self._learn(thread)
                first = (avma - thread.base >> 3) + 1
            else:
                top = thread.frames[0][2]
        search = Search(self._frames, thread, reader)
        known = dict(slots)
        slots.clear()
        if self._mark[0] and 0 <= first < len(thread.stack):
            self._entries(search, first, top, known, slots)
        return search.found

    def _entries(self, search: Search, first: int, top: int, known: Slots, slots: Slots) -> None:
        """Find all suspended evaluator calls on the stack, besides the thread's own calls, and add them to
        search.found.

        Args:
            first: Index of the first stack word to search.
            top: avma of the running frame if the thread's own frames lack their entry frame, else 0.
        """
        stack, base, found = search.thread.stack, search.thread.base, search.found
        running, low = top, first
        for index in self._like(search, first):
            entry = base + 8 * index
            frames = self._run(search, top, entry) if top and (top == running or search.calls(top)) else None
            if frames is None and running and not found.frames:
                continue
            if frames is None and self._delta:
                place = index + (self._delta + self._current >> 3)
                if 0 <= place < len(stack) and search.calls(stack[place]):
                    frames = self._run(search, stack[place], entry)
            elif frames is None:
                frames = self._guess(search, range(low, index), known.get(entry, (0, 0)), slots)
            if frames is None:
                continue  # the evaluator call may have ended, and nothing has overwritten it yet
            found.frames += [*frames, (stack, index, entry)]
            found.markers.add(entry)
            top = stack[index + self._frames.previous]
            top = 0 if top == search.thread.stop else top
            low = index
        if running and found.frames:
            found.replaces = True
            found.markers.discard(next(avma for _, _, avma in found.frames if avma in search.bounds))

    def _is_entry(self, words: memoryview, at: int) -> bool:
        return self._frames.flags(words, at) >= self._entry_owner

    def _learn(self, thread: SwitchedThread) -> None:
        """Learn how the entry frames of this process look, from the outermost frame of a chain."""
        words, at, avma = thread.frames[-1]
        stack = range(thread.base, thread.base + 8 * len(thread.stack))
        self._mark = words[at + self._frames.instr], words[at + self._frames.code]
        near = [cframe - avma for cframe, _ in thread.stands if abs(cframe - avma) < _NEAR]
        self._delta = min(near, key=abs, default=0) or self._delta
        self._heap = next((frame for _, _, frame in thread.frames if frame not in stack), self._heap)

    def _like(self, search: Search, first: int) -> Iterator[int]:
        """Yield the stack indexes at which the words look like an entry frame, innermost first."""
        stack, frames = search.thread.stack, self._frames
        instr, code = self._mark
        data, pattern = stack[first : first + MAX_REGION].tobytes(), instr.to_bytes(8, "little")
        at = data.find(pattern)
        count = 0
        while at >= 0 and count < MAX_WAITING and search.spend_steps():
            index = first + (at >> 3) - frames.instr
            if not at & 7 and index >= first and index + frames.flag < len(stack):
                owner = frames.flags(stack, index)
                if stack[index + frames.code] == code and self._entry_owner <= owner <= _LAST_OWNER:
                    yield index
                    count += 1
            at = data.find(pattern, (at & -8) + 8)

    def _run(self, search: Search, top: int, entry: int) -> list[LocatedFrame] | None:
        """Follow the chain of Python frames of one suspended evaluator call, which belongs to a greenlet, outwards to
        its entry frame.

        In CPython 3.12 and later, each call of the evaluator (_PyEval_EvalFrameDefault) puts an entry frame on the C
        stack. The chain ends there.

        Args:
            search: The search, whose budget of steps is used up.
            top: avma of the innermost frame of the call.
            entry: avma of the entry frame at which the chain must end.

        Returns:
            The frames, innermost first, without the entry frame. None if they do not lead to that entry frame.
        """
        frames: list[LocatedFrame] = []
        objects: list[int] = []
        frame = top
        while frame and len(frames) < MAX_RUN and search.spend_steps():
            words, at = search.read(frame)
            if words is None or self._is_entry(words, at):
                return None
            frames.append((words, at, frame))
            outer = words[at + self._frames.previous]
            if outer != entry:
                link = search.link(words[at + self._frames.object], frame, objects)
                outer = link if link in search.bounds else outer
            if outer == entry:
                search.found.objects += objects
                return frames
            if outer in search.bounds:
                return None  # this is the outermost frame of another evaluator call
            frame = outer
        return None

    def _guess(self, search: Search, near: range, last: tuple[int, int], slots: Slots) -> list[LocatedFrame] | None:
        """Return the frames of a suspended evaluator call whose innermost frame is unknown. Stack words that may point
        to it are tried. Return None if no word leads to the entry frame.

        Args:
            search: The search.
            near: Indexes of the stack words between the next inner entry frame and that of this call, which is at the
                end of the range.
            last: The stack word that was found for this call at the last sample, and its value (Slots).
            slots: Receives the stack word that was found, and its value.
        """
        stack, base = search.thread.stack, search.thread.base
        entry = base + 8 * near.stop
        slot, frame = last
        place = slot - base >> 3
        if slot and place in near and stack[place] == frame:
            frames = self._living(search, frame, entry)
            if frames is not None:
                slots[entry] = last
                return frames
        if not search.spend_steps(len(near) // _WORDS_A_STEP):
            return None
        places = self._candidates(search, near)
        search.reader.fetch(list(places), self._frames.size)
        best: list[LocatedFrame] | None = None
        for word, at in places.items():
            if not search.spend_steps():
                break
            frames = self._living(search, word, entry)
            if frames is not None and (best is None or len(frames) > len(best)):
                best, slots[entry] = frames, (at, word)
        if best is None and frame:  # a register may still hold it
            best = self._living(search, frame, entry)
            if best is not None:
                slots[entry] = last
        while best is not None and (inner := self._called(search, best[0][2], entry)) is not None:
            best = inner
        return best

    def _called(self, search: Search, frame: int, entry: int) -> list[LocatedFrame] | None:
        """Return the frames of a suspended evaluator call whose outermost frame was called by `frame`.

        The called frame is the next one in memory that names `frame` as its caller. No stack word need have its
        address, because the address may be in a register that no function had to save.
        """
        behind, at = search.reader.read(frame, 8 * _BEHIND)
        if behind is None or not search.spend_steps():
            return None
        for index in range(at + 1, min(at + _BEHIND, len(behind))):
            if behind[index] == frame:
                inner = self._living(search, frame + 8 * (index - at - self._frames.previous), entry)
                if inner is not None:
                    return inner
        return None

    def _candidates(self, search: Search, near: range) -> dict[int, int]:
        """Return words of the stack that may be frame addresses, outermost first, and the address of each word."""
        stack, base = search.thread.stack, search.thread.base
        places: dict[int, int] = {}
        for place in reversed(near):
            word = stack[place]
            if not word & 7 and abs((word >> 32) - (self._heap >> 32)) <= 1 and word not in search.bounds:
                places.setdefault(word, base + 8 * place)
                if len(places) >= _MAX_CANDIDATES:
                    break
        return places

    def _living(self, search: Search, top: int, entry: int) -> list[LocatedFrame] | None:
        """Return the frames of a suspended evaluator call from `top` outwards, if `top` is still in use: its frame
        object points back to it.

        A frame that has returned has no frame object, or one that no longer points to it.
        """
        words, at = search.read(top)
        if words is None or not search.link(words[at + self._frames.object], top, []):
            return None
        return self._run(search, top, entry) if search.calls(top) else None
