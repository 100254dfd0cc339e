"""Copying a Python thread's thread state, frames, and heads of code objects while the thread is stopped.

A stop (by ptrace) makes few reads, each of many memory ranges. What the thread's last sample needed is read at once:
its data stack, the frames that generators keep elsewhere, and the code objects. Only new objects cost further reads.
During the stop, only what is needed to find the next frame is decoded.
"""

from __future__ import annotations

from pyprof.interpreters.cpython.code_objects import CodeCache
from pyprof.interpreters.cpython.greenlet_cframes import CFrameSearch
from pyprof.interpreters.cpython.greenlets import (
    EntrySearch,
    FrameWords,
    GreenletFrames,
    GreenletSearch,
    SwitchedThread,
)
from pyprof.interpreters.cpython.layout import NONE, ChainKind, Layout
from pyprof.interpreters.cpython.runtime_validation import PyThread
from pyprof.interpreters.cpython.thread_snapshot import (
    MAX_IN_STOP,
    MAX_SCATTERED,
    NOTHING,
    ROOM,
    ChunkCopier,
    Copied,
    FrameReadSizes,
    InStop,
    ReadHints,
    ReadPlanKey,
    complete_parts,
    plan_frames,
    read_each_span,
    view_words,
)
from pyprof.model.interpreter_reader_protocols import FrameReadPlan, Gather, Span

MAX_FRAMES = 1 << 16
"""Maximum number of Python frames of a thread that are followed, unless a larger limit on the stack copy
(`--stack-size`) raises it.
"""
_MIN_FRAME = 64
MAX_GUESSES = 900
"""Maximum number of Python code objects, and of frames outside the data stack, that a stop reads in advance because the
thread's last sample had them.
"""
ENTRY_OWNER = 3
"""Smallest owner value of a Python entry frame, which runs no code and lies on the C stack."""


def make_greenlet_search(layout: Layout) -> GreenletSearch | None:
    """Return an object that searches C stacks for suspended greenlets in a version of CPython. None if greenlets of
    that version leave nothing on the stack that could be found.
    """
    if layout.chain < ChainKind.ENTRIES:
        return None
    return CFrameSearch(layout) if layout.frame.is_entry != NONE else EntrySearch(layout, ENTRY_OWNER)


class Copier:
    """A copier of thread states and frames of one CPython runtime's threads while they are stopped.

    Attributes:
        seeks_greenlets: True if greenlets may be suspended on the threads' stacks; if False no stop searches for them.
    """

    def __init__(
        self, layout: Layout, code_at: int, code_size: int, most_stack: int, settled: CodeCache | None = None
    ) -> None:
        """Create a copier of the frames of stopped Python threads.

        Args:
            layout: Offsets in the structures of the runtime.
            code_at: Offset in bytes of the copied head of a code object.
            code_size: Size of the head in bytes.
            most_stack: Maximum number of bytes that are copied of a thread's data stack, which holds its Python frames.
            settled: Code objects that are not read during a stop.
        """
        self.seeks_greenlets = False
        self._settled_codes = settled
        self._settled = settled.heads if settled is not None else {}
        self._layout = layout
        self._code_at = code_at
        self._code_size = code_size
        self._most_frames = max(MAX_FRAMES, most_stack // _MIN_FRAME)
        self._thread_words = (layout.thread.size + 7) // 8
        self._lock_size = (max(layout.gil_locked, layout.gil_holder) + 8 + 7) & ~7
        self._frame_size = (layout.frame.size + 7) & ~7
        self._frames = FrameWords(layout)
        self._entry = ENTRY_OWNER if layout.chain is ChainKind.SHIMS else 1
        self._in_stop = MAX_SCATTERED if layout.thread.chunk == NONE else MAX_IN_STOP
        self._chunks = ChunkCopier(layout, most_stack)
        self._greenlets = make_greenlet_search(layout)

    def copy_frames(self, thread: PyThread, habits: ReadHints, stack: memoryview, base: int, gather: Gather) -> Copied:
        """Copy the thread state and the frames of a stopped Python thread.

        Args:
            stack: The thread's stack copy as 64-bit words.
            base: Address of the stack copy.
            gather: Function that reads memory ranges of the stopped process.
        """
        layout = self._layout
        chunks, frames = habits.chunks, habits.frames
        spans = self._first_spans(thread, habits)
        data = gather(spans)
        words = view_words(data)
        parts = list(complete_parts(spans, words))
        head = words[: self._thread_words]
        if len(head) < self._thread_words:
            # a bad pointer among the last sample's addresses hides everything that was read together with it
            habits.chunks, habits.frames, habits.codes, habits.asked, habits.spans = [], [], [], [], []
            return Copied(
                thread, head, [], {}, [], head[:0], head[:0], [], gather, problem="its thread state is gone", stale=True
            )
        copied = Copied(
            thread, head, [], {}, [],
            lock=parts[1] if len(parts) > 1 else head[:0],
            collecting=parts[2] if len(parts) > 2 else head[:0],
            regions=[(base, base + 8 * len(stack), stack)],
            gather=gather,
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
        copied.codes = dict(zip(habits.asked, parts[at:], strict=False))
        if layout.thread.chunk != NONE:
            self._chunks.copy_chunks(copied, habits, got, gather)
        first = self._first(copied, gather)
        self._follow(copied, first, loose, gather)
        if copied.stands and copied.stands[0][1] and not self._links(copied):
            # the evaluator has put its CFrame into the chain but has not yet said which frame it runs
            problem = copied.problem
            del copied.stands[0], copied.frames[:]
            copied.problem, copied.rest, copied.cut = "", 0, False
            self._follow(copied, copied.stands[0][1] if copied.stands else 0, loose, gather)
            if not copied.frames:  # 3.11 frees a frame's chunk before it clears the pointer to the frame
                copied.problem = problem
        if self.seeks_greenlets and not (copied.problem and copied.frames) and not copied.rest:
            self._add_greenlets(copied, stack, base, habits, InStop(copied, loose, gather))
        return copied

    def _first_spans(self, thread: PyThread, habits: ReadHints) -> list[Span]:
        """Return the memory ranges that a stop copies with its first read: the thread state, the GIL, the garbage
        collector's flag, and what the thread's last sample needed.
        """
        return [
            (thread.address, 8 * self._thread_words),
            (thread.gil or thread.address, self._lock_size),
            (thread.collecting & ~7, 8),
            *(habits.spans or self._spans(habits)),
        ]

    def plan_read(self, thread: PyThread, habits: ReadHints) -> FrameReadPlan | None:
        """Return a plan of the memory that the next copy of a Python thread's frames reads, or None if that memory
        cannot be predicted.
        """
        if self._settled_codes is None:
            return None
        sizes = FrameReadSizes(self._frame_size, self._in_stop, ROOM)
        spans = self._first_spans(thread, habits)
        return plan_frames(self._layout, sizes, thread, habits, spans, self._settled_codes.addresses)

    def accept_planned(
        self,
        states: list[tuple[PyThread, ReadHints]],
        ahead: FrameReadPlan,
        stack: memoryview,
        base: int,
        gather: Gather,
    ) -> Copied | None:
        """Build the copy of a thread's Python frames from memory that a stop has read by a plan; return None if the
        thread state has changed.
        """
        key = ahead.key
        if not isinstance(key, ReadPlanKey) or len(states) != 1 or states[0][0] != key.thread:
            return None
        habits = key.habits()
        states[0] = key.thread, habits
        return self.copy_frames(key.thread, habits, stack, base, gather)

    def _add_greenlets(self, copied: Copied, stack: memoryview, base: int, habits: ReadHints, reader: InStop) -> None:
        base_frame = self._layout.thread.base_frame
        stop = copied.head[base_frame >> 3] if base_frame != NONE else 0
        waiter = SwitchedThread(copied.thread.address, copied.frames, copied.stands, stop, stack, base)
        if self._greenlets is not None and not self._greenlets.has_nothing(waiter):
            self._add(copied, self._greenlets.search(waiter, habits.slots, reader), reader.gather)

    def _spans(self, habits: ReadHints) -> list[Span]:
        """Return the memory ranges that the Python frames of a thread's last sample needed, as its read hints state
        them.
        """
        spans = [(at, min(used + (0 if n else ROOM), size)) for n, (at, used, size) in enumerate(habits.chunks)]
        spans += [(at, self._frames.size) for at in habits.frames]
        spans += [(at + self._code_at, self._code_size) for at in habits.asked]
        return spans

    def _first(self, copied: Copied, gather: Gather) -> int:
        """Return the address of a thread's innermost Python frame, and store the CFrames of its C stack in
        `copied.stands`.
        """
        layout = self._layout.thread
        head = copied.head
        at = head[layout.frame >> 3]
        if layout.cframe == NONE:
            return at
        self._stand(copied, head[layout.cframe >> 3], gather)
        if self._layout.chain is ChainKind.CFRAMES:
            return at
        return copied.stands[0][1] if copied.stands else 0

    def _stand(self, copied: Copied, cframe: int, gather: Gather | None) -> None:
        """Append a CFrame, and all CFrames outside of it, to copied.stands. Without the function `gather` for further
        reads, stop at the first CFrame that is not copied yet.
        """
        layout = self._layout.thread
        root = copied.thread.address + layout.root_cframe
        size = layout.cframe_previous + 8
        most = self._in_stop if gather else self._most_frames
        while cframe and cframe != root:
            if len(copied.stands) >= most:
                copied.rest_stand = cframe
                return
            words, index = copied.find(cframe, size, {}, gather)
            if words is None:
                copied.problem = copied.problem or "a frame's place on the C stack could not be read"
                return
            current = words[index + (layout.cframe_current >> 3)] if layout.cframe_current != NONE else 0
            copied.stands.append((cframe, current))
            cframe = words[index + (layout.cframe_previous >> 3)]

    def _follow(self, copied: Copied, frame: int, loose: dict[int, memoryview], gather: Gather | None) -> None:
        """Append a Python frame and all of its callers to copied.frames. Without the function `gather` for further
        reads, stop at the first frame that is not copied yet.

        Args:
            copied: The copy.
            frame: avma of the frame.
            loose: Memory outside of the copied regions that was read, by address.
            gather: Function that reads further memory, None if only copied memory is used.
        """
        previous, code, size = self._frames.previous, self._frames.code, self._frame_size
        mask, settled = self._layout.frame.code_mask, self._settled
        frames, codes = copied.frames, copied.codes
        most = self._in_stop if gather else self._most_frames
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
            elif (known := loose.get(frame)) is not None and 8 * len(known) >= size:
                words, at, low, high = known, 0, frame, frame + 8 * len(known)
            else:
                found, at = copied.find(frame, size, loose, gather)
                if found is None:
                    copied.cut = bool(copied.beyond)
                    if not copied.cut:
                        copied.problem = copied.problem or "a frame could not be read"
                    break
                words, low = found, frame - 8 * at
                high = low + 8 * len(words)
            frames.append((words, at, frame))
            executable = words[at + code] & mask
            if executable not in settled and executable not in codes and gather is not None:
                codes[executable] = words[:0]
                new.append(executable)
            frame = words[at + previous]
        if new and gather is not None:
            self._heads(copied, new, gather)

    def _heads(self, copied: Copied, codes: list[int], gather: Gather) -> None:
        spans = [(address + self._code_at, self._code_size) for address in codes]
        for address, part in zip(codes, read_each_span(spans, gather), strict=True):
            copied.codes[address] = part
            if address and not len(part):
                copied.problem = copied.problem or "a frame's code could not be read"

    def _add(self, copied: Copied, found: GreenletFrames, gather: Gather) -> None:
        """Append the frames of suspended greenlets to `copied.frames`. The thread state does not lead to these
        frames.
        """
        if found.replaces:
            copied.frames, copied.stands = [], []
        if found.frames and not copied.frames:
            copied.problem = ""
        copied.frames += found.frames
        copied.stands += found.stands
        copied.waiting = found.markers
        copied.objects = found.objects
        code, mask = self._frames.code, self._layout.frame.code_mask
        used = {words[at + code] & mask for words, at, _ in found.frames}
        self._heads(copied, [at for at in used if at not in copied.codes and at not in self._settled], gather)

    def _links(self, copied: Copied) -> bool:
        """Return True if the copied CFrames fit the copied frames: the frame after those of the innermost evaluator
        call is the one that the next CFrame names.
        """
        expected = copied.stands[1][1] if len(copied.stands) > 1 else 0
        flag, shift, entry = self._frames.flag, self._frames.flag_shift, self._entry
        for words, at, _ in copied.frames:
            if words[at + flag] >> shift & 0xFF >= entry:
                return words[at + self._frames.previous] == expected
        return bool(copied.rest)

    def learn_reads(self, copied: Copied) -> None:
        """Record, after a stop, which memory the frames of a thread needed, so that its next stop reads it at once."""
        habits, copied.habits = copied.habits, None
        if habits is None or copied.stale:
            return
        regions = copied.regions
        kept = {id(words) for _, _, words in regions}
        frames = [at for words, _, at in copied.frames if id(words) not in kept]
        habits.frames = (frames + copied.objects)[:MAX_IN_STOP]
        code, mask = self._frames.code, self._layout.frame.code_mask
        used = dict.fromkeys([words[at + code] & mask for words, at, _ in copied.frames])
        used.pop(0, None)
        copied.used = tuple(used)
        if copied.rest:  # the frames that were not followed run the same code objects as before
            used.update(dict.fromkeys(habits.codes))
        # Unreadable objects come last: one hides what is behind it, and it may only have been read too late.
        codes, settled = copied.codes, self._settled
        habits.codes = sorted(used, key=lambda at: at not in settled and not len(codes.get(at, NOTHING)))[:MAX_GUESSES]
        habits.asked = [at for at in habits.codes if at not in settled]
        habits.spans = self._spans(habits)

    def finish_copy(self, copied: Copied) -> None:
        """Append the outer frames of a deep Python stack from memory that a stop has copied. It is called after the
        thread has been continued.
        """
        frame, copied.rest = copied.rest, 0
        # each frame is allocated separately, so none of the rest is in the copy
        if frame and self._layout.thread.chunk == NONE:
            copied.unread, frame, copied.rest_stand = True, 0, 0
        stand, copied.rest_stand = copied.rest_stand, 0
        if frame:
            self._follow(copied, frame, {}, None)
        if stand:
            self._stand(copied, stand, None)
        if copied.rest or copied.rest_stand:
            copied.problem = copied.problem or "more frames than can be followed"
