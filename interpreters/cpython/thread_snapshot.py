"""The data that one stop copies of a Python thread: frames, chunks of its data stack, and memory that is read ahead.

Memory that the next stop will read is predicted in the order in which Copier.copy_frames reads.

Source of data stacks: Include/internal/pycore_pystate.h, _PyStackChunk: previous, size in bytes, top in words.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pyprof.interpreters.cpython.greenlets import Slots
from pyprof.interpreters.cpython.layout import NONE, ChainKind, Layout
from pyprof.interpreters.cpython.object_reader import Memory, Unreadable
from pyprof.interpreters.cpython.runtime_validation import PyThread
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.interpreter_reader_protocols import FrameReadPlan, Gather, PlacedSpan, Span

MAX_IN_STOP = 2048
"""Maximum number of Python frames that are followed while a thread is stopped. The rest of a deep stack is followed
later, in the copied memory.
"""
MAX_SCATTERED = 1024
"""Maximum number of Python frames that are followed while a thread is stopped, in versions of CPython without a data
stack.

In these versions each frame is a separate read, and the frames beyond the limit are in no copied memory. Python's
default recursion limit is 1,000.
"""
MAX_FAILURES = 16
"""Number of unreadable code objects in one sample after which no more of them are read."""
NOTHING = memoryview(b"").cast("Q")


@dataclass(slots=True)
class ReadHints:
    """The addresses of memory that the last sample of a Python thread needed. The next stop of the thread reads all of
    them at once.

    Attributes:
        chunks: (avma, used bytes, size in bytes) of each chunk of the data stack, newest first.
        frames: avma of frames and objects outside the data stack.
        codes: avma of code objects.
        asked: Those code objects whose heads are read during a stop.
        spans: All of these as memory ranges, computed between stops; empty if they must be computed again.
        slots: Stack words that named frames of suspended greenlets (see greenlets.Slots).
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
        codes: Heads (first words) of code objects by address.
        stands: (avma, frame that it names) of each CFrame, innermost first.
        lock: Words of the GIL.
        collecting: Word with the garbage collector's flag.
        regions: (start, end, words) of copied memory.
        gather: Function that reads more memory of the process, also after the stop.
        rest: Frame at which the stop ended early, 0 if it did not.
        rest_stand: CFrame at which the stop ended early, 0 if it did not.
        problem: Why the chain ends early, "" if it reaches its root.
        beyond: First chunk of the data stack that is not copied, 0 if all are.
        cut: True if the chain ends at `beyond`.
        unread: True if the chain continues after the maximum number of copied frames.
        stale: True if the thread state belongs to another thread or is gone.
        objects: Other addresses that the next sample needs.
        used: avma of the code objects that the frames run; set together with the read hints.
        outermost: avma of the outermost frame of each run.
        habits: The thread's read hints that are to be updated, None once that is done.
        waiting: C stack markers of suspended evaluator calls, to which the thread state does not lead.
        marks: All C stack markers, innermost first, if it is unknown to which evaluator call each belongs.
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
        """Return (words, index of the word at the address) of memory that the stop has copied. If `gather` is given,
        read memory that is missing. Return (None, 0) if the memory is not available.
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
    """The memory of a stopped thread as a search for greenlets reads it (StoppedMemory): what was copied, and at most
    MAX_IN_STOP further reads.
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
    """Split words that were read for several memory ranges into one part for each range.

    Args:
        spans: The ranges, in the order in which they were read.
        words: The words of all ranges, one range directly after the other, as view_words() returns them. They end early
            if a range could not be read.

    Yields:
        A view of the words of each range, up to the first range that is not complete.
    """
    at = 0
    for _, size in spans:
        end = at + (size >> 3)
        if end > len(words):
            return
        yield words[at:end]
        at = end


def read_each_span(spans: list[Span], gather: Gather) -> Iterator[memoryview]:
    """Read spans of memory one by one, and yield the words of each, empty if it cannot be read. After MAX_FAILURES
    failures all further ones are empty.
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


MAX_CHUNKS = 64
"""Maximum number of chunks of a thread's data stack that are copied, unless a larger limit on the stack copy
(`--stack-size`) raises it.
"""
ROOM = 2048
"""Number of bytes that are copied beyond the top of the newest chunk of a data stack, which grows from sample to
sample.
"""
_MIN_CHUNK, _USUAL_CHUNK = 1 << 13, 1 << 14
_CHUNK_HEAD = 24
_FRESH_CHUNKS = 96
"""Maximum number of new chunks of a data stack (not in the thread's last sample) that are read one by one while the
thread is stopped.
"""
_MAX_KNOWN = 1 << 16
_HEAD_WORDS = 3


class ChunkCopier:
    """A copier of the data stacks (chunks of Python frames) of stopped threads. It copies whole chunks, up to
    `most_stack` bytes of one stack.
    """

    def __init__(self, layout: Layout, most_stack: int) -> None:
        self._chunk = layout.thread.chunk >> 3
        self._most_stack = most_stack
        self._most_chunks = max(MAX_CHUNKS, most_stack // _MIN_CHUNK)

    def copy_chunks(self, copied: Copied, habits: ReadHints, got: dict[int, memoryview], gather: Gather) -> None:
        """Copy the chunks of a thread's CPython data stack into copied.regions, newest first.

        Args:
            got: Memory that was read because the thread's last sample needed it, by address.
        """
        at, top = (copied.head[self._chunk + n] for n in (0, 1))
        found: list[tuple[int, int, int]] = []
        habits.chunks, habits.spans = found, []
        total = fresh = 0
        while at and len(found) < self._most_chunks and total < self._most_stack:
            copied.beyond = at
            part = got.get(at)
            if part is None or len(part) < _CHUNK_HEAD // 8:
                fresh += 1
                part = view_words(gather([(at, _USUAL_CHUNK)]))
                if fresh > _FRESH_CHUNKS or len(part) < _CHUNK_HEAD // 8:
                    return
            size = part[1] & ~7
            used = _CHUNK_HEAD + 8 * part[2] if found else top - at
            used = min(max(used, _CHUNK_HEAD), size, self._most_stack) & ~7
            if found and total + used > self._most_stack:
                break
            if used > 8 * len(part):
                part = view_words(gather([(at, used)]))
            part = part[: used + (0 if found else ROOM) >> 3]
            if not len(part):
                return
            copied.regions.insert(len(found), (at, at + 8 * len(part), part))
            found.append((at, used, size))
            total += used
            at = part[0]
        copied.beyond = at


@dataclass
class ChunkSizes:
    """A reader of the sizes of CPython data stacks in one process, while the process runs.

    A known chunk is not read again, so a stack that has shrunk and grown may be reported with its earlier size.
    """

    memory: Memory
    _known: dict[int, int] = field(default_factory=dict)

    def count_bytes_from(self, chunk: int) -> int:
        """Return the number of bytes in use in a chunk of a data stack and in all older chunks, as far as they can be
        read.
        """
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        new: dict[int, int] = {}
        while chunk and chunk not in self._known and chunk not in new and len(new) < _MAX_KNOWN:
            try:
                previous, size, top = self.memory.read_words(chunk, _HEAD_WORDS)
            except Unreadable:
                break
            new[chunk] = min(8 * (_HEAD_WORDS + top), size)
            chunk = previous
        total = self._known.get(chunk, 0)
        for at in reversed(new):
            total = self._known[at] = total + new[at]
        return total


_FIXED = 3
"""Number of spans of memory before those of the read hints: the thread state, the GIL, the garbage collector's flag."""
_MAX_SPANS = 1000
_MAX_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ReadPlanKey:
    """The key of a plan for the next stop: the thread for which it was made, and a copy of the thread's read hints
    (ReadHints) at that time.
    """

    thread: PyThread
    chunks: list[tuple[int, int, int]]
    frames: list[int]
    codes: list[int]
    asked: list[int]
    spans: list[Span]

    def habits(self) -> ReadHints:
        return ReadHints(self.chunks, self.frames, self.codes, self.asked, self.spans)


@dataclass(frozen=True, slots=True)
class FrameReadSizes:
    """The sizes of the structures that a copy of Python frames reads.

    Attributes:
        frame: Bytes of a frame.
        most: Maximum number of frames that are followed.
        room: Bytes that are copied beyond the top of a data stack.
    """

    frame: int
    most: int
    room: int


def plan_frames(
    layout: Layout,
    sizes: FrameReadSizes,
    thread: PyThread,
    habits: ReadHints,
    spans: Sequence[Span],
    settled: array[int],
) -> FrameReadPlan | None:
    """Return a plan of the memory that the next stop of a Python thread reads, or None if that cannot be predicted.

    Args:
        spans: All memory ranges that the stop reads at once.

    Returns:
        None if no read hints (ReadHints) of the thread are known yet, if the thread needs too much memory, or if it
        runs code whose names are not read yet.
    """
    if not habits.spans or habits.asked or len(spans) > _MAX_SPANS or sum(size for _, size in spans) > _MAX_BYTES:
        return None
    offsets = list(accumulate((size for _, size in spans), initial=0))
    placed = [PlacedSpan(at, size, offset) for (at, size), offset in zip(spans, offsets, strict=False)]
    loose_at = _FIXED + len(habits.chunks)
    of_thread, of_frame, cframe = layout.thread, layout.frame, layout.thread.cframe
    return FrameReadPlan(
        key=ReadPlanKey(thread, habits.chunks, habits.frames, habits.codes, habits.asked, habits.spans),
        spans=spans,
        chunks=placed[_FIXED:loose_at],
        loose=placed[loose_at : loose_at + len(habits.frames)],
        codes=settled,
        ident=thread.ident,
        interpreter=thread.interpreter,
        thread_id=of_thread.thread_id,
        interp=of_thread.interp,
        frame=of_thread.frame,
        chunk=of_thread.chunk,
        cframe=cframe,
        base_frame=of_thread.base_frame,
        by_cframe=cframe != NONE and layout.chain is not ChainKind.CFRAMES,
        root_cframe=thread.address + of_thread.root_cframe,
        cframe_size=of_thread.cframe_previous + 8,
        cframe_current=of_thread.cframe_current,
        cframe_previous=of_thread.cframe_previous,
        previous=of_frame.previous,
        code=of_frame.code,
        code_mask=of_frame.code_mask,
        frame_size=sizes.frame,
        most=sizes.most,
        room=sizes.room,
    )
