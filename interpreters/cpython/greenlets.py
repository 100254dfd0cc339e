"""Evaluator calls on a thread's C stack that are missing from its frame chain: those of suspended greenlets.

A greenlet begins on the C stack of the greenlet that started it. While it runs, the thread state does not know its
parent's frames. The search finds what they left on the stack: entry frames in 3.12 and later (greenlet_entries.py),
CFrames in 3.11 (greenlet_cframes.py). The greenlet library, when it shows the frames of suspended stacks, removes the
entry frames from their chain and keeps the links in the frame objects. These objects also prove that a frame is alive.

The search runs while the thread is stopped. What the last search found is copied with everything else, so that it costs
no separate read.
"""

from __future__ import annotations

from typing import Protocol

from pyprof.interpreters.cpython.layout import NONE, Layout
from pyprof.records import dataclass, field

Slots = dict[int, tuple[int, int]]
"""Entry frame -> (address of the stack word that held the address of its evaluator call's innermost frame, that
address).
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
    """The memory of a stopped thread, as far as a search for greenlets needs it."""

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        """Return 64-bit words of the stopped thread's memory and the index of the first one wanted, or (None, 0) if
        they cannot be read.
        """
        ...

    def fetch(self, avmas: list[int], size: int) -> None:
        """Read several frames or objects at once that the search for greenlets will need."""
        ...


@dataclass(frozen=True, slots=True)
class SwitchedThread:
    """A thread with greenlets as its own frame chain describes it.

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
        frames: As Copied.frames.
        stands: As Copied.stands.
        objects: avma of other memory that was read.
        markers: Markers of the evaluator calls that wait.
        replaces: True if `frames` begins with the frames of the chain itself, because the chain lacked its entry frames
            or
            has a CFrame that stands for no evaluator call.
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
            slots: Slots of the thread's last sample; the search replaces them.
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
        """Return the owner of a Python frame (3.12 and later), or 1 if it is the outermost of its evaluator call
        (3.11).
        """
        return int(words[at + self.flag] >> self.flag_shift & 0xFF)


class Search:
    """One search for suspended greenlets on the stack of one thread."""

    def __init__(self, frames: FrameWords, thread: SwitchedThread, reader: StoppedMemory) -> None:
        self.thread = thread
        self.bounds = range(thread.base, thread.base + 8 * len(thread.stack))
        self.found = GreenletFrames()
        self.reader = reader
        self._frames = frames
        self._left = MAX_STEPS

    def spend_steps(self, steps: int = 1) -> bool:
        """Use up steps of the search's limit, and return True while some are left."""
        self._left -= steps
        return self._left >= 0

    def read(self, frame: int) -> tuple[memoryview | None, int]:
        """Return the words of a Python frame or of a frame object and the index of its first one; (None, 0) if they
        cannot be read.
        """
        return self.reader.read(frame, self._frames.size)

    def calls(self, frame: int) -> bool:
        """Return True if a Python frame may be calling a C function. A frame that was left or calls Python code stores
        its stack depth.
        """
        if not self._frames.has_height:
            return True
        words, at = self.read(frame)
        return words is not None and words[at + self._frames.instr + 1] & 0xFFFFFFFF == 0xFFFFFFFF

    def link(self, made: int, frame: int, objects: list[int]) -> int:
        """Return the frame to which a frame object links, and append the object to `objects`; 0 if the object does not
        belong to the frame.
        """
        if not made or not self._frames.object_link:
            return 0
        words, at = self.read(made)
        if words is None or words[at + self._frames.object_frame] != frame:
            return 0
        objects.append(made)
        return int(words[at + self._frames.object_link])
