"""Activations that wait on a C stack, CPython 3.12 and later: found by their entry frames.

All entry frames name the same instruction. Each names the innermost frame of the next activation outside it. The
innermost frame of all is named by its CFrame (3.12), else by a register that some function saved between the two: of
all words there those count whose frames lead to that very entry frame.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.greenlets import (
    MOST_REGION,
    MOST_RUN,
    MOST_WAITING,
    FrameWords,
    GreenletFrames,
    Placed,
    Search,
    Slots,
    StoppedMemory,
    SwitchedThread,
)
from pyprof.interpreters.cpython.layout import Layout

_MOST_CANDIDATES = 256
_WORDS_A_STEP = 8
_LAST_OWNER = 7
_NEAR = 0x400
"""Bytes within which the evaluator's CFrame and its entry frame lie."""
_BEHIND = 128
"""Words behind the beginning of a frame among which the frame that it calls begins."""


class EntrySearch:
    """A GreenletSearch. entry_owner: owner of an entry frame, or less than it. Learns how this process's entry frames
    look: their instruction and code, where their CFrame lies, where frames outside of the stack lie.
    """

    def __init__(self, layout: Layout, entry_owner: int) -> None:
        self._frames = FrameWords(layout)
        self._entry_owner = entry_owner
        self._current = layout.thread.cframe_current
        self._mark = 0, 0
        self._delta = self._heap = 0

    def nothing(self, thread: SwitchedThread) -> bool:
        """As GreenletSearch has it."""
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
        return thread.stack[first : first + MOST_REGION].tobytes().find(self._mark[0].to_bytes(8, "little")) < 0

    def search(self, thread: SwitchedThread, slots: Slots, reader: StoppedMemory) -> GreenletFrames:
        """As GreenletSearch has it."""
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
        """first: index of the first word to search. top: the running frame, if the chain lacks its entry frame."""
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
                continue  # it may have been left, and nothing is written over it yet
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
        """How this process's entry frames look, from the outermost one of a chain."""
        words, at, avma = thread.frames[-1]
        stack = range(thread.base, thread.base + 8 * len(thread.stack))
        self._mark = words[at + self._frames.instr], words[at + self._frames.code]
        near = [cframe - avma for cframe, _ in thread.stands if abs(cframe - avma) < _NEAR]
        self._delta = min(near, key=abs, default=0) or self._delta
        self._heap = next((frame for _, _, frame in thread.frames if frame not in stack), self._heap)

    def _like(self, search: Search, first: int) -> Iterator[int]:
        """Indexes of entry frames, innermost first."""
        stack, frames = search.thread.stack, self._frames
        instr, code = self._mark
        data, pattern = stack[first : first + MOST_REGION].tobytes(), instr.to_bytes(8, "little")
        at = data.find(pattern)
        count = 0
        while at >= 0 and count < MOST_WAITING and search.step():
            index = first + (at >> 3) - frames.instr
            if not at & 7 and index >= first and index + frames.flag < len(stack):
                owner = frames.flags(stack, index)
                if stack[index + frames.code] == code and self._entry_owner <= owner <= _LAST_OWNER:
                    yield index
                    count += 1
            at = data.find(pattern, (at & -8) + 8)

    def _run(self, search: Search, top: int, entry: int) -> list[Placed] | None:
        """The frames of an activation from its innermost one on; None if they do not lead to its entry frame."""
        frames: list[Placed] = []
        objects: list[int] = []
        frame = top
        while frame and len(frames) < MOST_RUN and search.step():
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
                return None  # the outermost one of another activation
            frame = outer
        return None

    def _guess(self, search: Search, near: range, last: tuple[int, int], slots: Slots) -> list[Placed] | None:
        """The run of an activation whose innermost frame is named by some word between it and the one inside it.

        near: indexes of these words; the entry frame stands at its end. last: the slot of the last sample.
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
        if not search.step(len(near) // _WORDS_A_STEP):
            return None
        places = self._candidates(search, near)
        search.reader.fetch(list(places), self._frames.size)
        best: list[Placed] | None = None
        for word, at in places.items():
            if not search.step():
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

    def _called(self, search: Search, frame: int, entry: int) -> list[Placed] | None:
        """The run from the frame on that another one calls: the next one in memory. No word on the stack may name it: a
        register that nobody had to save does.
        """
        behind, at = search.reader.read(frame, 8 * _BEHIND)
        if behind is None or not search.step():
            return None
        for index in range(at + 1, min(at + _BEHIND, len(behind))):
            if behind[index] == frame:
                inner = self._living(search, frame + 8 * (index - at - self._frames.previous), entry)
                if inner is not None:
                    return inner
        return None

    def _candidates(self, search: Search, near: range) -> dict[int, int]:
        """Words that may be addresses of frames, outermost first, and where each stands."""
        stack, base = search.thread.stack, search.thread.base
        places: dict[int, int] = {}
        for place in reversed(near):
            word = stack[place]
            if not word & 7 and abs((word >> 32) - (self._heap >> 32)) <= 1 and word not in search.bounds:
                places.setdefault(word, base + 8 * place)
                if len(places) >= _MOST_CANDIDATES:
                    break
        return places

    def _living(self, search: Search, top: int, entry: int) -> list[Placed] | None:
        """The run from a frame on that has an object of its own: one that was left has none, or one that says so."""
        words, at = search.read(top)
        if words is None or not search.link(words[at + self._frames.object], top, []):
            return None
        return self._run(search, top, entry) if search.calls(top) else None
