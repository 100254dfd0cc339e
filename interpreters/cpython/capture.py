"""What is read of a Python thread while it stands still: its thread state, its frames, the heads of their code.

Few reads of many spans: what the thread's last sample needed is asked for at once (its data stack, the frames that
generators keep elsewhere, the code objects); only what is new costs a further read. Nothing is decoded here that is
not needed to find the next frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyprof.interpreters.cpython.layout import NONE, Chain, Layout
from pyprof.interpreters.cpython.runtime import PyThread
from pyprof.interpreters.cpython.waiting import Found, Slots, Waiter, WaitingFrames, waiting_size
from pyprof.model.interpreter import Gather, Span

MOST_IN_STOP = 2048
"""Frames that are followed while the thread stands still; the rest of a deep stack is followed in the copy."""
MOST_FRAMES = 1 << 16
MOST_CHUNKS = 64
"""So many at least; as many as there may be in what is copied."""
_LEAST_FRAME, _LEAST_CHUNK = 64, 1 << 13
MOST_FAILURES = 16
"""So many code objects of one sample may be unreadable; then the others are not tried."""
MOST_GUESSES = 900
"""Code objects that are asked for because the last sample had them, as are frames outside the data stack."""
_ROOM = 2048
_CHUNK_HEAD, _USUAL_CHUNK = 24, 1 << 14
_FRESH_CHUNKS = 96
"""So many chunks that the last sample did not have are read one by one in a stop."""
ENTRY_OWNER = 3
"""A frame with this owner or a greater one is an entry frame: it runs nothing and stands on the C stack."""


@dataclass(slots=True)
class Habits:
    """What a thread's last sample needed. chunks: of the data stack, newest first, (avma, bytes used, bytes there).
    spans: all that, made when the thread runs again; empty if they are to be made anew.
    slots: see waiting.Slots.
    """

    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    slots: Slots = field(default_factory=dict)


@dataclass(slots=True)
class Copied:
    """One thread state, copied. frames: (words, index of its first word, avma) innermost first; codes: heads by
    address. stands: avma of each CFrame, innermost first, and the frame that it names. rest: the frame at which the
    stop ended early, rest_stand the CFrame. problem: why the chain ends there, "" at its root. outermost:
    of each run, the avma of its outermost frame. habits: to learn what was needed, None once that is done.
    beyond: the first chunk of the data stack that is not copied, 0 if all are; cut: the chain ends there.
    objects: other places that the next sample needs. waiting: markers of activations that are not in the thread's
    chain. marks: see model.interpreter.Chain.

    It has more fields than other classes: they are what one stop has copied, read once, far from it.
    """

    thread: PyThread
    head: memoryview
    frames: list[tuple[memoryview, int, int]]
    codes: dict[int, memoryview]
    stands: list[tuple[int, int]]
    lock: memoryview
    collecting: memoryview
    regions: list[tuple[int, int, memoryview]]
    rest: int = 0
    rest_stand: int = 0
    problem: str = ""
    beyond: int = 0
    cut: bool = False
    stale: bool = False
    objects: list[int] = field(default_factory=list)
    outermost: list[int] = field(default_factory=list)
    habits: Habits | None = None
    waiting: set[int] = field(default_factory=set)
    marks: tuple[int, ...] = ()


class Copier:
    """Copies thread states of one runtime. code_at, code_size: the head of a code object. several: greenlets may wait
    on the threads' stacks; else nobody looks for them while a thread stands still. most_stack: so many bytes of a data
    stack are copied, in whole chunks. It has 17 attributes: most are offsets of the layout as indexes of words, which a
    stop has no time to work out.
    """

    def __init__(self, layout: Layout, code_at: int, code_size: int, most_stack: int) -> None:
        self._most_stack = most_stack
        self._most_chunks = max(MOST_CHUNKS, most_stack // _LEAST_CHUNK)
        self._most_frames = max(MOST_FRAMES, most_stack // _LEAST_FRAME)
        self._layout = layout
        self._code_at = code_at
        self._code_size = code_size
        self._thread_words = (layout.thread.size + 7) // 8
        self._lock_size = (max(layout.gil_locked, layout.gil_holder) + 8 + 7) & ~7
        self._previous = layout.frame.previous >> 3
        self._code = layout.frame.code >> 3
        self._mask = layout.frame.code_mask
        self._frame_size = (layout.frame.size + 7) & ~7
        shims = layout.chain is Chain.SHIMS
        self.several = False
        self._waiting = WaitingFrames(layout, ENTRY_OWNER) if layout.chain >= Chain.ENTRIES else None
        self._loose_size = waiting_size(layout)
        self._flag = layout.frame.owner if shims else layout.frame.is_entry
        self._entry = ENTRY_OWNER if shims else 1

    def copy(self, thread: PyThread, habits: Habits, stack: memoryview, base: int, gather: Gather) -> Copied:
        """stack: the thread's stack copy as 64-bit words, which stood at base."""
        layout = self._layout
        chunks, frames, codes = habits.chunks, habits.frames, habits.codes
        spans = [
            (thread.address, 8 * self._thread_words),
            (thread.gil or thread.address, self._lock_size),
            (thread.collecting & ~7, 8),
            *(habits.spans or self._spans(habits)),
        ]
        data = gather(spans)
        words = data[: len(data) & ~7].cast("Q")
        parts = list(_cut(spans, words))
        head = words[: self._thread_words]
        if len(head) < self._thread_words:
            # a bad pointer among what the last sample had hides all that was asked for with it
            habits.chunks, habits.frames, habits.codes, habits.spans = [], [], [], []
            return Copied(
                thread, head, [], {}, [], head[:0], head[:0], [], problem="its thread state is gone", stale=True
            )
        copied = Copied(
            thread, head, [], {}, [],
            lock=parts[1] if len(parts) > 1 else head[:0],
            collecting=parts[2] if len(parts) > 2 else head[:0],
            regions=[(base, base + 8 * len(stack), stack)],
            habits=habits,
        )  # fmt: skip
        wanted = head[layout.thread.thread_id >> 3] == thread.ident
        if not wanted or head[layout.thread.interp >> 3] != thread.interpreter:
            copied.stale, copied.problem = True, "its thread state has changed hands"
            return copied
        at = 3
        got = dict(zip([c[0] for c in chunks], parts[at : at + len(chunks)], strict=False))
        at += len(chunks)
        loose = dict(zip(frames, parts[at : at + len(frames)], strict=False))
        at += len(frames)
        copied.codes = dict(zip(codes, parts[at:], strict=False))
        if layout.thread.chunk != NONE:
            self._chunks(copied, habits, got, gather)
        first = self._first(copied, gather)
        self._follow(copied, first, loose, gather)
        if copied.stands and copied.stands[0][1] and not self._links(copied):
            # the evaluator has put its CFrame into the chain and not yet said which frame it runs
            problem = copied.problem
            del copied.stands[0], copied.frames[:]
            copied.problem, copied.rest, copied.cut = "", 0, False
            self._follow(copied, copied.stands[0][1] if copied.stands else 0, loose, gather)
            if not copied.frames:  # 3.11 frees a frame's chunk before it forgets the frame
                copied.problem = problem
        if self.several and self._waiting is not None and not (copied.problem and copied.frames) and not copied.rest:
            base_frame = layout.thread.base_frame
            stop = head[base_frame >> 3] if base_frame != NONE else 0
            waiter = Waiter(thread.address, copied.frames, copied.stands, stop)
            if not self._waiting.nothing(waiter, stack, base):
                found = self._waiting.search(waiter, stack, base, habits.slots, _InStop(self, copied, loose, gather))
                self._add(copied, found, gather)
        return copied

    def _spans(self, habits: Habits) -> list[Span]:
        """What the thread's last sample needed."""
        spans = [(at, min(used + (0 if n else _ROOM), size)) for n, (at, used, size) in enumerate(habits.chunks)]
        spans += [(at, self._loose_size) for at in habits.frames]
        spans += [(at + self._code_at, self._code_size) for at in habits.codes]
        return spans

    def _chunks(self, copied: Copied, habits: Habits, got: dict[int, memoryview], gather: Gather) -> None:
        """The data stack's chunks as regions, newest first."""
        at, top = (copied.head[(self._layout.thread.chunk >> 3) + n] for n in (0, 1))
        found: list[tuple[int, int, int]] = []
        habits.chunks, habits.spans = found, []
        total = fresh = 0
        while at and len(found) < self._most_chunks and total < self._most_stack:
            copied.beyond = at
            part = got.get(at)
            if part is None or len(part) < _CHUNK_HEAD // 8:
                fresh += 1
                part = _words(gather([(at, _USUAL_CHUNK)]))
                if fresh > _FRESH_CHUNKS or len(part) < _CHUNK_HEAD // 8:
                    return
            size = part[1] & ~7
            used = (top - at if not found else part[2]) if not found else _CHUNK_HEAD + 8 * part[2]
            used = min(max(used, _CHUNK_HEAD), size, self._most_stack) & ~7
            if found and total + used > self._most_stack:
                break
            if used > 8 * len(part):
                part = _words(gather([(at, used)]))
            part = part[: used + (0 if found else _ROOM) >> 3]
            if not len(part):
                return
            copied.regions.insert(len(found), (at, at + 8 * len(part), part))
            found.append((at, used, size))
            total += used
            at = part[0]
        copied.beyond = at

    def _first(self, copied: Copied, gather: Gather) -> int:
        """The innermost frame; fills in what stands on the C stack."""
        layout = self._layout.thread
        head = copied.head
        at = head[layout.frame >> 3]
        if layout.cframe == NONE:
            return at
        self._stand(copied, head[layout.cframe >> 3], gather)
        if self._layout.chain is Chain.CFRAMES:
            return at
        return copied.stands[0][1] if copied.stands else 0

    def _stand(self, copied: Copied, cframe: int, gather: Gather | None) -> None:
        """The CFrames from one on, into copied.stands. gather None: in what is copied."""
        layout = self._layout.thread
        root = copied.thread.address + layout.root_cframe
        size = layout.cframe_previous + 8
        most = MOST_IN_STOP if gather else self._most_frames
        while cframe and cframe != root:
            if len(copied.stands) >= most:
                copied.rest_stand = cframe
                return
            words, index = self.find(copied, cframe, size, {}, gather)
            if words is None:
                copied.problem = copied.problem or "a frame's place on the C stack could not be read"
                return
            current = words[index + (layout.cframe_current >> 3)] if layout.cframe_current != NONE else 0
            copied.stands.append((cframe, current))
            cframe = words[index + (layout.cframe_previous >> 3)]

    def _follow(self, copied: Copied, frame: int, loose: dict[int, memoryview], gather: Gather | None) -> None:
        """The chain from a frame on, into copied.frames. gather None: in what is copied."""
        previous, code, mask, size = self._previous, self._code, self._mask, self._frame_size
        frames, codes = copied.frames, copied.codes
        most = MOST_IN_STOP if gather else self._most_frames
        base_frame = self._layout.thread.base_frame
        stop = copied.head[base_frame >> 3] if base_frame != NONE else 0
        new: list[int] = []
        low = high = 0
        words = copied.head
        while frame and frame != stop:
            if len(frames) >= most:
                copied.rest = frame
                break
            if low <= frame and frame + size <= high and not frame & 7:
                at = frame - low >> 3
            else:
                found, at = self.find(copied, frame, size, loose, gather)
                if found is None:
                    copied.cut = bool(copied.beyond)
                    if not copied.cut:
                        copied.problem = copied.problem or "a frame could not be read"
                    break
                words, low = found, frame - 8 * at
                high = low + 8 * len(words)
            frames.append((words, at, frame))
            executable = words[at + code] & mask
            if executable not in codes and gather is not None:
                codes[executable] = words[:0]
                new.append(executable)
            frame = words[at + previous]
        if new and gather is not None:
            self._heads(copied, new, gather)

    def _heads(self, copied: Copied, codes: list[int], gather: Gather) -> None:
        spans = [(address + self._code_at, self._code_size) for address in codes]
        for address, part in zip(codes, _each(spans, gather), strict=True):
            copied.codes[address] = part
            if address and not len(part):
                copied.problem = copied.problem or "a frame's code could not be read"

    def _add(self, copied: Copied, found: Found, gather: Gather) -> None:
        """What waits on the stack outside the thread's chain, behind it in copied.frames."""
        if found.replaces:
            copied.frames = []
        if found.frames and not copied.frames:
            copied.problem = ""
        copied.frames += found.frames
        copied.stands += found.stands
        copied.waiting = found.markers
        copied.objects = found.objects
        code, mask = self._code, self._mask
        new = {words[at + code] & mask for words, at, _ in found.frames}.difference(copied.codes)
        self._heads(copied, list(new), gather)

    def _links(self, copied: Copied) -> bool:
        """Does the innermost activation's run end where the next CFrame's begins?"""
        flag = self._flag
        expected = copied.stands[1][1] if len(copied.stands) > 1 else 0
        for words, at, _ in copied.frames:
            if words[at + (flag >> 3)] >> 8 * (flag & 7) & 0xFF >= self._entry:
                return words[at + self._previous] == expected
        return bool(copied.rest)

    def find(
        self, copied: Copied, avma: int, size: int, loose: dict[int, memoryview], gather: Gather | None
    ) -> tuple[memoryview | None, int]:
        """(words, index) of memory that was copied, or is now."""
        if avma & 7:
            return None, 0
        for low, high, words in copied.regions:
            if low <= avma and avma + size <= high:
                return words, avma - low >> 3
        words = loose.get(avma) or _NOTHING
        if 8 * len(words) < size:
            if gather is None:
                return None, 0
            words = _words(gather([(avma, (size + 7) & ~7)]))
            if 8 * len(words) < size:
                return None, 0
            loose[avma] = words
        return words, 0

    def learn(self, copied: Copied) -> None:
        """What the thread's next sample is likely to need: found out when it runs again."""
        habits, copied.habits = copied.habits, None
        if habits is None or copied.stale:
            return
        regions = copied.regions
        kept = {id(words) for _, _, words in regions}
        frames = [at for words, _, at in copied.frames if id(words) not in kept]
        habits.frames = (frames + copied.objects)[:MOST_IN_STOP]
        code, mask = self._code, self._mask
        used = dict.fromkeys([words[at + code] & mask for words, at, _ in copied.frames])
        used.pop(0, None)
        if copied.rest:  # what its outer frames run is what it was
            used.update(dict.fromkeys(habits.codes))
        # what could not be read comes last: it hides what is behind it, and may only have come too late
        codes = copied.codes
        habits.codes = sorted(used, key=lambda at: not len(codes.get(at, _NOTHING)))[:MOST_GUESSES]
        habits.spans = self._spans(habits)

    def finish(self, copied: Copied) -> None:
        """The rest of a deep stack, from the copy."""
        frame, copied.rest = copied.rest, 0
        stand, copied.rest_stand = copied.rest_stand, 0
        if frame:
            self._follow(copied, frame, {}, None)
        if stand:
            self._stand(copied, stand, None)
        if copied.rest or copied.rest_stand:
            copied.problem = copied.problem or "more frames than can be followed"


@dataclass(slots=True)
class _InStop:
    """A waiting.Reader."""

    copier: Copier
    copied: Copied
    loose: dict[int, memoryview]
    gather: Gather
    left: int = MOST_IN_STOP

    def read(self, avma: int, size: int) -> tuple[memoryview | None, int]:
        self.left -= 1
        if self.left < 0:
            return None, 0
        return self.copier.find(self.copied, avma, size, self.loose, self.gather)

    def fetch(self, avmas: list[int], size: int) -> None:
        new = [avma for avma in avmas if avma not in self.loose]
        self.loose.update(zip(new, _each([(avma, size) for avma in new], self.gather), strict=True))


_NOTHING = memoryview(b"").cast("Q")


def _words(data: memoryview) -> memoryview:
    return data[: len(data) & ~7].cast("Q")


def _cut(spans: list[Span], words: memoryview) -> Iterator[memoryview]:
    """The words of each span that was read as a whole."""
    at = 0
    for _, size in spans:
        end = at + (size >> 3)
        if end > len(words):
            return
        yield words[at:end]
        at = end


def _each(spans: list[Span], gather: Gather) -> Iterator[memoryview]:
    """The words of each span; one that cannot be read is empty and does not hide the next, MOST_FAILURES do."""
    at = failures = 0
    while at < len(spans) and failures < MOST_FAILURES:
        words = _words(gather(spans[at:]))
        for part in _cut(spans[at:], words):
            yield part
            at += 1
        if at < len(spans):
            yield _NOTHING
            at += 1
            failures += 1
    for _ in spans[at:]:
        yield _NOTHING
