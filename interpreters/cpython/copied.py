"""What one stop has copied of a Python thread, and how memory is asked for while it stands still."""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.greenlets import Slots
from pyprof.interpreters.cpython.runtime import PyThread
from pyprof.model.interpreter import Gather, Span
from pyprof.records import dataclass, field

MOST_IN_STOP = 2048
"""Frames that are followed while the thread stands still; the rest of a deep stack is followed in the copy."""
MOST_SCATTERED = 1024
"""The same of a version without a data stack: each frame is a read of its own, and the rest is in no copy. Python's own
limit of recursion is 1,000."""
MOST_FAILURES = 16
"""So many code objects of one sample may be unreadable; then the others are not tried."""
NOTHING = memoryview(b"").cast("Q")


@dataclass(slots=True)
class Habits:
    """What a thread's last sample needed. chunks: of the data stack, newest first, (avma, bytes used, bytes there).
    codes: of code objects; asked: those of them whose heads are read in a stop.
    spans: all that, made when the thread runs again; empty if they are to be made anew.
    slots: see greenlets.Slots.
    """

    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    slots: Slots = field(default_factory=dict)


@dataclass(slots=True)
class Copied:
    """One thread state, copied. frames: (words, index of its first word, avma) innermost first; codes: heads by
    address. stands: avma of each CFrame, innermost first, and the frame that it names. rest: the frame at which the
    stop ended early, rest_stand the CFrame. problem: why the chain ends there, "" at its root. outermost:
    of each run, the avma of its outermost frame. habits: to learn what was needed, None once that is done.
    unread: the chain goes on outside of what is copied, after so many frames as are copied at most.
    beyond: the first chunk of the data stack that is not copied, 0 if all are; cut: the chain ends there.
    objects: other places that the next sample needs. used: the code objects that its frames run, known once habits are
    learned. gather: reads more, also when the thread runs again. waiting: markers of activations that are not in the
    thread's chain. marks: see model.interpreter.Chain.
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
    habits: Habits | None = None
    waiting: set[int] = field(default_factory=set)
    marks: tuple[int, ...] = ()

    def find(
        self, avma: int, size: int, loose: dict[int, memoryview], gather: Gather | None
    ) -> tuple[memoryview | None, int]:
        """(words, index) of memory that was copied, or is now."""
        if avma & 7:
            return None, 0
        for low, high, words in self.regions:
            if low <= avma and avma + size <= high:
                return words, avma - low >> 3
        words = loose.get(avma) or NOTHING
        if 8 * len(words) < size:
            if gather is None:
                return None, 0
            words = words_of(gather([(avma, (size + 7) & ~7)]))
            if 8 * len(words) < size:
                return None, 0
            loose[avma] = words
        return words, 0


@dataclass(slots=True)
class InStop:
    """A greenlets.StoppedMemory: at most MOST_IN_STOP reads."""

    copied: Copied
    loose: dict[int, memoryview]
    gather: Gather
    left: int = MOST_IN_STOP

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        self.left -= 1
        if self.left < 0:
            return None, 0
        return self.copied.find(avma, size, self.loose, self.gather)

    def fetch(self, avmas: list[int], size: int) -> None:
        new = [avma for avma in avmas if avma not in self.loose]
        self.loose.update(zip(new, each_of([(avma, size) for avma in new], self.gather), strict=True))


def words_of(data: memoryview) -> memoryview:
    """Its whole 64-bit words."""
    return data[: len(data) & ~7].cast("Q")


def whole_parts(spans: list[Span], words: memoryview) -> Iterator[memoryview]:
    """The words of each span that was read as a whole."""
    at = 0
    for _, size in spans:
        end = at + (size >> 3)
        if end > len(words):
            return
        yield words[at:end]
        at = end


def each_of(spans: list[Span], gather: Gather) -> Iterator[memoryview]:
    """The words of each span; one that cannot be read is empty and does not hide the next, MOST_FAILURES do."""
    at = failures = 0
    while at < len(spans) and failures < MOST_FAILURES:
        words = words_of(gather(spans[at:]))
        for part in whole_parts(spans[at:], words):
            yield part
            at += 1
        if at < len(spans):
            yield NOTHING
            at += 1
            failures += 1
    for _ in spans[at:]:
        yield NOTHING
