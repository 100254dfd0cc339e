"""The data that one stop has copied of a Python thread, and its reads while the thread is stopped."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.greenlets import Slots
from pyprof.interpreters.cpython.runtime_state import PyThread
from pyprof.model.interpreter_state import Gather, Span
from pyprof.records import dataclass, field

MAX_IN_STOP = 2048
"""Maximum number of Python frames that are followed during a stop. The rest of a deep stack is followed in the copy."""
MAX_SCATTERED = 1024
"""Maximum number of Python frames that are followed during a stop for versions without a data stack.

There, each frame is a separate read and the rest is in no copy. Python's default recursion limit is 1,000.
"""
MAX_FAILURES = 16
"""Number of unreadable code objects in one sample after which no more of them are read."""
NOTHING = memoryview(b"").cast("Q")


@dataclass(slots=True)
class ReadHints:
    """Addresses that a Python thread's last sample needed, so that the next stop can read all of them at once.

    Attributes:
        chunks: (avma, bytes used, bytes there) of the data stack's chunks, newest first.
        frames: avma of frames and objects outside the data stack.
        codes: avma of code objects.
        asked: Those code objects whose heads are read during a stop.
        spans: All of these as spans, computed between stops; empty if they must be computed again.
        slots: See greenlets.Slots.
    """

    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    slots: Slots = field(default_factory=dict)


@dataclass(slots=True)
class Copied:
    """The state of a Python thread that one stop has copied.

    Attributes:
        thread: The thread state.
        head: Words of the thread state.
        frames: (words, index of its first word, avma) of each frame, innermost first.
        codes: Heads of code objects by address.
        stands: (avma, frame that it names) of each CFrame, innermost first.
        lock: Words of the GIL.
        collecting: Word with the garbage collector's flag.
        regions: (start, end, words) of copied memory.
        gather: Reads more memory, also after the stop.
        rest: Frame at which the stop ended early, 0 if it did not.
        rest_stand: CFrame at which the stop ended early, 0 if it did not.
        problem: Why the chain ends early, "" if it reaches its root.
        beyond: First chunk of the data stack that is not copied, 0 if all are.
        cut: True if the chain ends at `beyond`.
        unread: True if the chain continues after the maximum number of copied frames.
        stale: True if the thread state belongs to another thread or is gone.
        objects: Other addresses that the next sample needs.
        used: Code objects that the frames run; set when the habits are learned.
        outermost: avma of the outermost frame of each run.
        habits: Habits to update, None once that is done.
        waiting: Markers of evaluator calls that are not in the thread's chain.
        marks: See model.interpreter_state.Chain.
    """

    thread: PyThread
    head: memoryview
    frames: list[tuple[memoryview, int, int]]
    codes: dict[int, memoryview | bytes]
    stands: list[tuple[int, int]]
    lock: memoryview
    collecting: memoryview
    regions: list[tuple[int, int, memoryview]]
    gather: Gather
    rest: int = 0
    rest_stand: int = 0
    problem: str = ""
    beyond: int = 0
    cut: bool = False
    unread: bool = False
    stale: bool = False
    objects: list[int] = field(default_factory=list)
    used: tuple[int, ...] = ()
    outermost: list[int] = field(default_factory=list)
    habits: ReadHints | None = None
    waiting: set[int] = field(default_factory=set)
    marks: tuple[int, ...] = ()

    def find(
        self, avma: int, size: int, loose: dict[int, memoryview], gather: Gather | None
    ) -> tuple[memoryview | None, int]:
        """Return (words, index) of memory that was copied in the stop, reading it now if `gather` is given; (None, 0)
        if it is missing.
        """
        if avma & 7:
            return None, 0
        for low, high, words in self.regions:
            if low <= avma and avma + size <= high:
                return words, avma - low >> 3
        words = loose.get(avma) or NOTHING
        if 8 * len(words) < size:
            if gather is None:
                return None, 0
            words = view_words(gather([(avma, (size + 7) & ~7)]))
            if 8 * len(words) < size:
                return None, 0
            loose[avma] = words
        return words, 0


@dataclass(slots=True)
class InStop:
    """The memory of a stopped thread for the search for greenlets (StoppedMemory), which makes at most MAX_IN_STOP
    reads.
    """

    copied: Copied
    loose: dict[int, memoryview]
    gather: Gather
    left: int = MAX_IN_STOP

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        self.left -= 1
        if self.left < 0:
            return None, 0
        return self.copied.find(avma, size, self.loose, self.gather)

    def fetch(self, avmas: list[int], size: int) -> None:
        new = [avma for avma in avmas if avma not in self.loose]
        self.loose.update(zip(new, read_each_span([(avma, size) for avma in new], self.gather), strict=True))


def view_words(data: memoryview) -> memoryview:
    """Return the complete 64-bit words of some bytes."""
    return data[: len(data) & ~7].cast("Q")


def complete_parts(spans: list[Span], words: memoryview) -> Iterator[memoryview]:
    """Yield the words of each span of memory that was read completely."""
    at = 0
    for _, size in spans:
        end = at + (size >> 3)
        if end > len(words):
            return
        yield words[at:end]
        at = end


def read_each_span(spans: list[Span], gather: Gather) -> Iterator[memoryview]:
    """Yield the words of each span of memory, empty if it cannot be read. After MAX_FAILURES failures all further ones
    are empty.
    """
    at = failures = 0
    while at < len(spans) and failures < MAX_FAILURES:
        words = view_words(gather(spans[at:]))
        for part in complete_parts(spans[at:], words):
            yield part
            at += 1
        if at < len(spans):
            yield NOTHING
            at += 1
            failures += 1
    for _ in spans[at:]:
        yield NOTHING
