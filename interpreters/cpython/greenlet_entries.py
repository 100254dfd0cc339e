"""Search for suspended greenlets on a C stack in CPython 3.12 and later, by their entry frames.

All entry frames name the same instruction. Each one names the innermost frame of the next evaluator call outside it. In
3.12 a CFrame names the innermost frame of all. In later versions a register does, which some function saved on the
stack between the two: the search accepts those words whose frames lead to that very entry frame.
"""

from __future__ import annotations

from collections.abc import Iterator

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

_MAX_CANDIDATES = 256
_WORDS_A_STEP = 8
_LAST_OWNER = 7
_NEAR = 0x400
"""Distance in bytes within which an evaluator's CFrame and its entry frame lie."""
_BEHIND = 128
"""Number of words after the beginning of a Python frame among which the frame that it calls begins."""


class EntrySearch:
    """A search for suspended greenlets that learns how the entry frames of one process look.

    It learns their instruction and code, the distance to their CFrame, and the memory region of frames outside the
    stack. entry_owner is the smallest owner value of an entry frame.
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
        """Return the suspended evaluator calls on the stack outside the thread's chain, and remember their slots for
        the next sample.
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
        """Find all suspended evaluator calls outside the thread's chain and add them to search.found.

        Args:
            first: Index of the first stack word to search.
            top: The running frame if the chain lacks its entry frame, else 0.
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
        """Learn what this process's Python entry frames look like from the outermost frame of a chain."""
        words, at, avma = thread.frames[-1]
        stack = range(thread.base, thread.base + 8 * len(thread.stack))
        self._mark = words[at + self._frames.instr], words[at + self._frames.code]
        near = [cframe - avma for cframe, _ in thread.stands if abs(cframe - avma) < _NEAR]
        self._delta = min(near, key=abs, default=0) or self._delta
        self._heap = next((frame for _, _, frame in thread.frames if frame not in stack), self._heap)

    def _like(self, search: Search, first: int) -> Iterator[int]:
        """Yield the stack indexes of words that look like entry frames, innermost first."""
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
        """Return the frames of an evaluator call from `top` outwards, None if they do not lead to its entry frame."""
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
        """Return the frames of a suspended evaluator call whose innermost frame is named by some word on the stack.

        Args:
            near: Indexes of the words between this evaluator call and the one inside it; the entry frame is at its end.
            last: The slot of the last sample.
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
        """Return the suspended evaluator call (frames) whose outermost frame is the one that `frame` calls.

        That is the next frame in memory that names `frame` as its caller.

        Its address may be on no stack word, if it is in a register that no function had to save.
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
        """Return the frames of a suspended evaluator call from `top` outwards if the frame object of `top` exists and
        points back to it.

        A frame that was left has no object, or one that no longer points to it.
        """
        words, at = search.read(top)
        if words is None or not search.link(words[at + self._frames.object], top, []):
            return None
        return self._run(search, top, entry) if search.calls(top) else None
