"""Activations of the evaluator that wait on a thread's C stack and are not in its chain: those of other greenlets.

A greenlet begins on the C stack of the one that started it, and the thread state forgets that one's frames while it
runs. What they have left on the stack is found again: entry frames (3.12 and later, greenlet_entries.py), CFrames
(3.11, greenlet_cframes.py). A library that shows the frames of suspended stacks (greenlet) takes the entry frames out
of their chain and keeps the links in the frames' objects; these objects show as well that a frame is alive.

Runs while the thread stands still. What was found last time is copied with everything else, so that it costs no read.
"""

from __future__ import annotations

from typing import Protocol

from pyprof.interpreters.cpython.layout import NONE, Layout
from pyprof.records import dataclass, field

Slots = dict[int, tuple[int, int]]
"""By entry frame: where the address of its activation's innermost frame stood, and that address."""
Placed = tuple[memoryview, int, int]
"""(words, index of its first word, avma) of a frame."""

MOST_REGION = 1 << 15
"""Words of the stack that are searched."""
MOST_WAITING = 256
"""Activations."""
MOST_RUN = 2048
"""Frames of one activation."""
MOST_STEPS = 3000
"""Of one search, frames and places looked at together: hostile memory leads in circles, and the thread stands still."""


class StoppedMemory(Protocol):
    """Memory of the thread that stands still."""

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        """Words and the index of the first one wanted; None if they cannot be read."""
        ...

    def fetch(self, avmas: list[int], size: int) -> None:
        """Read many at once that will be asked for."""
        ...


@dataclass(frozen=True, slots=True)
class SwitchedThread:
    """The thread as its own chain has it. address: of its state. frames: innermost first, with the entry frames (3.12
    and later). stands: its CFrames and the frames that they name. stop: the frame at which all chains end. stack: the
    thread's words, which stood at base.
    """

    address: int
    frames: list[Placed]
    stands: list[tuple[int, int]]
    stop: int
    stack: memoryview
    base: int


@dataclass(slots=True)
class GreenletFrames:
    """frames, stands: as the thread's chain would have them. objects: avma of what else was read. markers:
    of those that wait. replaces: they begin with the frames of the chain itself, which lacked its entry frames, or has
    a CFrame that stands for no activation.
    """

    frames: list[Placed] = field(default_factory=list)
    stands: list[tuple[int, int]] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    markers: set[int] = field(default_factory=set)
    replaces: bool = False


class GreenletSearch(Protocol):
    """Of one process."""

    def nothing(self, thread: SwitchedThread) -> bool:
        """Is nothing there to be found? That is so in all threads that have no greenlets: little is done for them."""
        ...

    def search(self, thread: SwitchedThread, slots: Slots, reader: StoppedMemory) -> GreenletFrames:
        """slots: of the last sample; replaced by those of this one."""
        ...


def waiting_size(layout: Layout) -> int:
    """Bytes that are read of a frame or of its object."""
    return max(layout.frame.size, layout.frame.object_link + 8) + 7 & ~7


class FrameWords:
    """Where the words of a frame stand, as indexes. previous, code, instr: its own. size: bytes to read of one."""

    def __init__(self, layout: Layout) -> None:
        frame = layout.frame
        self.size = waiting_size(layout)
        self.previous, self.code, self.instr = frame.previous >> 3, frame.code >> 3, frame.instr >> 3
        flag = frame.is_entry if frame.is_entry != NONE else frame.owner
        self.flag, self.flag_shift = flag >> 3, 8 * (flag & 7)
        self.object, self.object_frame = frame.object >> 3, frame.object_frame >> 3
        self.object_link = frame.object_link >> 3 if frame.object_link != NONE else 0
        self.has_height = layout.minor < 14

    def flags(self, words: memoryview, at: int) -> int:
        """Who owns a frame (3.12 and later), or is it the outermost of its activation (3.11)?"""
        return int(words[at + self.flag] >> self.flag_shift & 0xFF)


class Search:
    """One search on the stack of one thread."""

    def __init__(self, frames: FrameWords, thread: SwitchedThread, reader: StoppedMemory) -> None:
        self.thread = thread
        self.bounds = range(thread.base, thread.base + 8 * len(thread.stack))
        self.found = GreenletFrames()
        self.reader = reader
        self._frames = frames
        self._left = MOST_STEPS

    def step(self, steps: int = 1) -> bool:
        """May the search go on?"""
        self._left -= steps
        return self._left >= 0

    def read(self, frame: int) -> tuple[memoryview | None, int]:
        """Words and the index of the first one of a frame, or of an object; None if they cannot be read."""
        return self.reader.read(frame, self._frames.size)

    def calls(self, frame: int) -> bool:
        """Does a frame call a C function? One that was left, or calls Python code, has noted its stack's height."""
        if not self._frames.has_height:
            return True
        words, at = self.read(frame)
        return words is not None and words[at + self._frames.instr + 1] & 0xFFFFFFFF == 0xFFFFFFFF

    def link(self, made: int, frame: int, objects: list[int]) -> int:
        """Where a frame's object says that it leads, and the object into objects; 0 if it is not its object."""
        if not made or not self._frames.object_link:
            return 0
        words, at = self.read(made)
        if words is None or words[at + self._frames.object_frame] != frame:
            return 0
        objects.append(made)
        return int(words[at + self._frames.object_link])
